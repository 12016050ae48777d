// What a file of documents holds, before anything of it is sent: its first rows, and what each column becomes.

import { parsed } from "./api.js";
import { written } from "./format.js";

const LOOKED_AT = 256 * 1024; // bytes, unpacked
const SHOWN = 5;
const MEDIA = { csv: "text/csv", ndjson: "application/x-ndjson", json: "application/json", text: "text/plain" };
const SUFFIXES = { csv: "csv", tsv: "csv", jsonl: "ndjson", ndjson: "ndjson", json: "json", txt: "text" };
const TEXTS = ["text", "body", "content", "sentence", "question", "message", "description", "title"];
const GZIP = [0x1f, 0x8b];
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];
const WRITTEN = /[^\s\x1c-\x1f\x85]|\ufeff/; // anything but what Python, which reads it, takes for space

const isWritten = (text) => WRITTEN.test(text);

export const FORMATS = {
	csv: "CSV with a header",
	ndjson: "JSON lines",
	json: "JSON",
	text: "Text, a document a line",
};
export const SUFFIX = /\.(csv|tsv|jsonl|ndjson|json|txt)?(\.gz)?$/i;

// The file can't be uploaded; the message says why and what to do.
export class Unreadable extends Error {}

// `columns`: { name, role: "id" | "text" | "metadata", type? }; of CSV `roles` gives them anew for a choice.
// `rows`: the first ones, a cell a column. `count` of the rows, if it can be told: `exact` or by their mean length.
// `problems`: [{ place, error }…] of the rows looked at. The file is to be sent as `media`.
export async function preview(file, format) {
	const { text, whole, packed, share } = await beginning(file);
	const read = format ?? guessed(file.name, text);
	const found = { csv, ndjson, json, text: lines }[read](text, whole);
	const count = whole ? found.rows.length : packed ? null : Math.round(found.rows.length / share) || null;
	if (whole && !found.rows.length && !found.problems.length) throw new Unreadable(`${file.name} holds no documents.`);
	if (text.includes("\ufffd")) found.problems.push({ place: file.name, error: "not all of it is UTF-8. Save it as UTF-8" });
	return {
		...found,
		format: read,
		media: MEDIA[read],
		rows: found.rows.slice(0, SHOWN),
		count,
		exact: whole,
	};
}

// The first text of a file. `share`: how much of its bytes that is.
async function beginning(file) {
	const start = await bytesOf(file.slice(0, 4).stream().getReader(), file);
	const begins = (magic) => magic.every((byte, i) => start.bytes[i] === byte);
	if (begins(ZSTD)) throw new Unreadable("Browsers can't look into zstd. Pack it with gzip, or upload it with curl.");
	const packed = begins(GZIP);
	const stream = packed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
	const { bytes, whole } = await bytesOf(stream.getReader(), file);
	if (bytes.includes(0)) throw new Unreadable(`${file.name} is not a text file in UTF-8.`);
	return { text: new TextDecoder().decode(bytes, { stream: !whole }), whole, packed, share: bytes.length / file.size };
}

async function bytesOf(reader, file) {
	const pieces = [];
	let size = 0;
	let whole = false;
	try {
		while (size < LOOKED_AT && !whole) {
			const { value, done } = await reader.read();
			whole = done;
			if (value) pieces.push(value);
			size += value?.length ?? 0;
		}
		if (!whole) reader.cancel();
	} catch (error) {
		// A file of several members of gzip: the browser reads the first.
		if (!size) throw new Unreadable(`${file.name} can't be read: ${error.message}. Is it a folder, or damaged?`);
	}
	return { bytes: new Uint8Array(await new Blob(pieces).arrayBuffer()), whole };
}

function guessed(name, text) {
	const suffix = SUFFIX.exec(name)?.[1]?.toLowerCase();
	if (suffix) return SUFFIXES[suffix];
	const [first, second = ""] = text.trimStart().split("\n");
	if (/^\{\s*"documents"|^\[/.test(first) || first.trim() === "{") return "json";
	if (first.startsWith("{")) return "ndjson";
	const cells = (line, mark) => line.split(mark).length;
	const table = (mark) => cells(first, mark) > 1 && cells(first, mark) === cells(second, mark);
	return table("\t") || (table(",") && /(^|,)"?text"?(,|$)/i.test(first.trim())) ? "csv" : "text";
}

// Without the last one where it may be cut.
const linesOf = (text, whole) => (whole ? text : text.slice(0, text.lastIndexOf("\n") + 1)).split(/\r?\n/);

function lines(text, whole) {
	const rows = linesOf(text, whole).filter((line) => WRITTEN.test(line));
	return { columns: [{ name: "line", role: "text" }], rows: rows.map((line) => [line]), problems: [] };
}

function ndjson(text, whole) {
	const entries = linesOf(text, whole).map((entry, i) => ({ place: `line ${i + 1}`, entry }));
	return objects(entries.filter(({ entry }) => WRITTEN.test(entry)));
}

function json(text) {
	const at = text.search(/^\s*\[|"documents"\s*:\s*\[/);
	if (at < 0) throw new Unreadable('A JSON file holds {"documents": [{"text": …}, …]}, or such a list alone.');
	const entries = elements(text, text.indexOf("[", at) + 1).map((entry, i) => ({ place: `documents.${i}`, entry }));
	return objects(entries);
}

// The values of a list of JSON, as they are written, from `at` to its end or that of the text.
function elements(text, at) {
	const [found, list] = [[], text.slice(at)];
	let [depth, begin] = [0, 0];
	for (const { 0: mark, index } of list.matchAll(/"(?:[^"\\]+|\\.)*"?|[[\]{},]/gs)) {
		if ("{[".includes(mark)) depth++;
		else if ("}]".includes(mark)) depth--;
		if (depth < 0 || (mark === "," && !depth)) {
			found.push(list.slice(begin, index));
			begin = index + 1;
		}
		if (depth < 0) break;
	}
	return found.filter((one) => one.trim());
}

function objects(entries) {
	const [given, problems] = [[], []];
	for (const { place, entry } of entries) {
		const value = parsed(entry);
		if (typeof value?.text === "string") given.push(value);
		else problems.push({ place, error: value === undefined ? "not JSON" : 'must be an object with a string "text"' });
	}
	const others = ({ id, text, metadata, ...rest }) => ({ ...rest, ...metadata });
	const names = [...new Set(given.flatMap((value) => Object.keys(others(value))))];
	const columns = [
		...(given.some(({ id }) => id) ? [{ name: "id", role: "id", cell: ({ id }) => id }] : []),
		{ name: "text", role: "text", cell: ({ text }) => text },
		...names.map((name) => ({ name, role: "metadata", cell: (value) => others(value)[name] })),
	];
	return { columns, rows: given.map((value) => columns.map(({ cell }) => shown(cell(value)))), problems };
}

const shown = (value) => (value === undefined || value === null ? "" : written(value));

function csv(text, whole) {
	const first = text.split("\n", 1)[0].replace(/"[^"]*"?/g, "");
	const delimiter = [",", ";", "\t"].reduce((best, one) => (first.split(one).length > first.split(best).length ? one : best));
	const all = table(text, delimiter);
	if (!whole) all.pop();
	const types = (all.shift()?.fields ?? []).map((name) => name.match(/^(.+):(number|boolean|string)$/) ?? [name, name, null]);
	const header = types.map(([, name]) => name);
	const twice = header.find((name, i) => header.indexOf(name) < i);
	if (twice !== undefined) throw new Unreadable(`The header names the column “${twice}” twice. Call one of them otherwise.`);
	const fits = ({ fields }) => fields.length >= header.length && !fields.slice(header.length).some(isWritten);
	const problems = all
		.filter((row) => !fits(row))
		.map(({ line, fields }) => ({ place: `line ${line}`, error: `has ${fields.length} fields, the header ${header.length}` }));
	const rows = all.filter(fits).map(({ fields }) => fields.slice(0, header.length));
	const length = (i) => rows.slice(0, 50).reduce((sum, row) => sum + row[i].length, 0);
	const named = TEXTS.map((name) => header.findIndex((column) => column.toLowerCase() === name)).find((i) => i >= 0);
	const textAt = named ?? header.reduce((best, _, i) => (length(i) > length(best) ? i : best), 0);
	const roles = (of, id) => types.map(([, name, type]) => ({ name, type, role: name === of ? "text" : name === id ? "id" : "metadata" }));
	const id = header.includes("id") && header[textAt] !== "id" ? "id" : "";
	return { columns: roles(header[textAt], id), rows, problems, roles };
}

// The rows of CSV, each with the number of the line that it begins in; rows that hold nothing are passed over.
function table(text, delimiter) {
	const rows = [];
	let [fields, field, quoted, line, begins] = [[], "", false, 1, 1];
	const end = () => {
		if ([...fields, field].some(isWritten)) rows.push({ line: begins, fields: [...fields, field] });
		[fields, field, begins] = [[], "", line];
	};
	for (let i = 0; i < text.length; i++) {
		const character = text[i];
		if (character === "\n") line++;
		if (quoted && character === '"' && text[i + 1] === '"') field += text[++i];
		else if (character === '"' && (quoted || !field)) quoted = !quoted;
		else if (!quoted && character === delimiter) [fields, field] = [[...fields, field], ""];
		else if (!quoted && character === "\r" && text[i + 1] === "\n") continue;
		else if (!quoted && character === "\n") end();
		else field += character;
	}
	end();
	return rows;
}
