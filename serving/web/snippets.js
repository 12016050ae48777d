// "Try it": the last request of a view in three languages, to copy.

import { button, choice, div, status } from "./controls.js";
import { el, fill } from "./dom.js";
import { json } from "./format.js";
import { keysMatter } from "./key.js";

const LANGUAGES = { curl, Python: python, JavaScript: javascript };

// A closed panel: put `element` into the place, and call show({ method, path, body?, type? }) for every request.
// `body` is the JSON that is sent, or { file: "notes.csv" } with its `type`.
export function tryIt() {
	let request = null;
	let language = "curl";
	const code = el("code");
	const said = status();
	const write = () => request && fill(code, LANGUAGES[language](request));
	const choose = (one) => {
		language = one;
		write();
	};
	const element = el(
		"details.try",
		{ hidden: true },
		el("summary", "Try it from your own code"),
		div("row", choice("Language", Object.keys(LANGUAGES).map((one) => [one, one]), language, choose), copier("Copy", () => code.textContent, said), said),
		el("pre", { tabindex: "0", "aria-label": "Code" }, code),
	);
	return {
		element,
		show(given) {
			request = { ...given, url: new URL(given.path, document.baseURI).href };
			element.hidden = false;
			said.textContent = "";
			write();
		},
	};
}

export const copier = (name, text, said) =>
	button(name, async () => {
		said.textContent = (await copied(text())) ? "Copied." : "Select the text and copy it yourself.";
	});

// Copy `text` to the clipboard. Return whether it worked, because browsers allow it only for https and for pages of this machine.
export async function copied(text) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		return false;
	}
}

// Return a request as a curl command.
export const asCurl = (request) => curl({ ...request, url: new URL(request.path, document.baseURI).href });

const headersOf = ({ body, type }) => ({
	...(body && { "content-type": body.file ? type : "application/json" }),
	...(keysMatter() && { authorization: "Bearer YOUR_KEY" }),
});

function curl(request) {
	const { method, url, body } = request;
	const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
	const headers = Object.entries(headersOf(request)).map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
	const data = body && (body.file ? [`-T ${quoted(body.file)}`] : [`-d ${quoted(json(body))}`]);
	const asked = method === (body ? "POST" : "GET") && !body?.file ? [] : [`-X ${method}`];
	return [`curl ${[...asked, quoted(url)].join(" ")}`, ...headers, ...(data ?? [])].join(" \\\n  ");
}

function python(request) {
	const { method, url, body } = request;
	const headers = headersOf(request);
	if (!body?.file) delete headers["content-type"];
	const given = [literal(url)];
	if (Object.keys(headers).length) given.push(`headers=${literal(headers)}`);
	if (body) given.push(body.file ? `data=open(${literal(body.file)}, "rb")` : `json=${literal(body)}`);
	return `import requests

answer = requests.${method.toLowerCase()}(
${given.map((line) => `    ${line},`).join("\n")}
)
answer.raise_for_status()
print(answer.${method === "DELETE" ? "status_code" : "json()"})`;
}

// Return a JSON value as Python source.
function literal(value) {
	if (value === null) return "None";
	if (typeof value === "boolean") return value ? "True" : "False";
	if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
	if (typeof value !== "object") return json(value);
	return `{${Object.entries(value).map(([name, one]) => `${literal(name)}: ${literal(one)}`).join(", ")}}`;
}

function javascript(request) {
	const { method, url, body } = request;
	const headers = headersOf(request);
	const given = [`  method: ${JSON.stringify(method)},`];
	if (Object.keys(headers).length) given.push(`  headers: ${JSON.stringify(headers)},`);
	if (body) given.push(body.file ? "  body: file, // of an <input type=\"file\">" : `  body: JSON.stringify(${json(body)}),`);
	return `const answer = await fetch(${JSON.stringify(url)}, {
${given.join("\n")}
});
if (!answer.ok) throw new Error(await answer.text());
console.log(${method === "DELETE" ? "answer.status" : "await answer.json()"});`;
}
