// The server's API. Every path is relative to the page, so that it works behind any prefix.

import { json, parsed } from "./format.js";
import { askForKey, authorization } from "./key.js";

export class ApiError extends Error {
	constructor(status, message, answer) {
		super(message);
		this.status = status; // 0 if the server did not answer
		this.answer = answer; // the body, if it was JSON
	}
}

// Return the JSON of the answer, or undefined if there is none. An object as `body` is sent as JSON.
export const call = async (path, options) => content(await send(path, options));

// Return the answer itself, for its headers or its stream.
export function send(path, { method, body, signal, headers } = {}) {
	const plain = body && Object.getPrototypeOf(body) === Object.prototype;
	return answered(() =>
		fetch(path, {
			method: method ?? (body ? "POST" : "GET"),
			body: plain ? json(body) : body,
			headers: { ...(plain && { "content-type": "application/json" }), ...authorization(), ...headers },
			signal,
		}),
	);
}

// Like `call`, but report the number of sent bytes by progress(sent, total).
export const upload = async (path, body, options) => content(await answered(() => uploaded(path, body, options)));

// Return the answer to request(). If the server requires a key, ask the user for a key and send the request again.
async function answered(request) {
	for (;;) {
		const { authorization: sent } = authorization();
		const answer = await connected(request());
		if (answer.ok) return answer;
		const again = answer.status === 401 && (authorization().authorization !== sent || (await askForKey())); // another request may have asked
		if (!again) throw refused(answer, await connected(answer.text()));
	}
}

async function content(answer) {
	const text = await connected(answer.text());
	const found = parsed(text);
	if (text && found === undefined) throw new ApiError(0, "The answer is not from the server. Perhaps a proxy wants you to log in: reload the page.");
	return found;
}

const connected = (promise) =>
	promise.catch((error) => {
		if (error.name === "AbortError") throw error;
		throw new ApiError(0, "The connection to the server was lost. See whether it still runs, then try again.");
	});

function uploaded(path, body, { method, headers, signal, progress }) {
	return new Promise((resolve, reject) => {
		const request = new XMLHttpRequest();
		const stop = () => request.abort();
		request.open(method, path);
		Object.entries({ ...authorization(), ...headers }).forEach(([name, value]) => request.setRequestHeader(name, value));
		request.upload.onprogress = (event) => progress(event.loaded, event.total);
		request.onload = () => {
			const { status, responseText } = request;
			resolve(new Response(responseText || null, { status, headers: { "retry-after": request.getResponseHeader("retry-after") ?? "" } }));
		};
		request.onerror = reject;
		request.onabort = () => reject(new DOMException("The upload was stopped.", "AbortError"));
		request.onloadend = () => signal.removeEventListener("abort", stop);
		signal.addEventListener("abort", stop);
		if (signal.aborted) return request.onabort();
		request.send(body);
	});
}

function refused({ status, headers }, text) {
	const answer = parsed(text);
	if (status === 401) return new ApiError(status, "This server requires an API key: give one with “API key” above.", answer);
	const said = answer?.error?.message ?? answer?.error ?? answer?.message ?? `the server answered ${status}`;
	const after = Number(headers.get("retry-after")); // seconds; 0 or NaN without the header
	return new ApiError(status, sentence(said) + (after ? ` Try again in ${after} s.` : ""), answer);
}

// A message that begins with the name of a file or field keeps its lower case.
function sentence(text) {
	const whole = String(text).trim();
	return whole.replace(/^[a-z](?=[a-z]* )/, (first) => first.toUpperCase()) + (/[.!?]$/.test(whole) ? "" : ".");
}
