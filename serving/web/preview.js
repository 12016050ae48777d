// Preview of a file before it is sent: its first rows, and the role of each column.

import { parsed, written } from "./format.js";
import { WRONG, read, strip, typed } from "./tables.js";

const LOOKED_AT = 256 * 1024; // bytes after decompression
const SHOWN = 5;
const MEDIA = { csv: "text/csv", ndjson: "application/x-ndjson", json: "application/json", text: "text/plain" };
const SUFFIXES = { csv: "csv", tsv: "csv", jsonl: "ndjson", ndjson: "ndjson", json: "json", txt: "text" };
const TEXTS = ["text", "body", "content", "sentence", "question", "message", "description", "title"];
const IDS = ["id", "_id", "uuid", "guid", "doc_id", "docid", "document_id"];
const MAX_ID_BYTES = 512;
const EXPIRY = "expires_at";
const ROLES = { [EXPIRY]: "expiry", vector: "vector" }; // of fields of JSON that are no metadata
const GZIP = [0x1f, 0x8b];
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];
const BOMS = { "utf-8": [0xef, 0xbb, 0xbf], "utf-16le": [0xff, 0xfe], "utf-16be": [0xfe, 0xff] };

const CHARSETS = ["utf-8", "windows-1252", "windows-1250", "windows-1251", "utf-16le", "utf-16be", "shift_jis", "gb18030", "euc-kr"];
export const FORMATS = {
	csv: "CSV",
	ndjson: "JSON lines",
	json: "JSON",
	text: "Lines of text",
};
// Formats that only the server can read: tables, or texts with sections.
const TABLES = { parquet: "Parquet", arrow: "Arrow", arrows: "Arrow", feather: "Arrow" };
const SECTIONS = { md: "Markdown", markdown: "Markdown", html: "HTML", htm: "HTML", xhtml: "HTML", pdf: "PDF", docx: "DOCX" };
const KNOWN = Object.keys({ ...SUFFIXES, ...TABLES, ...SECTIONS });
export const ACCEPT = [...KNOWN, "gz"].map((suffix) => `.${suffix}`).join();
export const SUFFIX = new RegExp(`\\.(${KNOWN.join("|")})?(\\.gz)?$`, "i");

// Error of a file that can't be uploaded. The message gives the reason and a remedy.
export class Unreadable extends Error {}

// How a file is read, as `given` or guessed: its format and charset; `media` to send it as, in a form where `form` says so.
// as({ text, id, types }) tells what becomes of it, where text and id are names of its `fields`, if it has any:
// `columns`: { name, role: "id" | "text" | "expiry" | "vector" | "metadata", type?, guess? }, `rows`: the first ones, a cell a column, `count` of
// them, if it can be told, and `problems`: [{ place, error }…] of the rows looked at. `exact`: those are all.
// `unread`, "table" or "sections": the server alone can read the file, in the format `format`.
export async function preview(file, given = {}) {
	const suffix = SUFFIX.exec(file.name)?.[1]?.toLowerCase();
	const unread = (suffix in TABLES && "table") || (suffix in SECTIONS && "sections");
	if (unread) return { unread, format: TABLES[suffix] ?? SECTIONS[suffix], form: "named", as: () => ({ columns: [], rows: [], count: null, problems: [] }) };
	const { text, whole, packed, share, charset, marked, bad } = await beginning(file, given.charset);
	const format = given.format ?? guessed(file.name, text);
	const { as, ...found } = { csv, ndjson, json, text: lines }[format](text, whole);
	const chosen = format === "csv" || format === "text";
	const known = chosen || marked ? charset : "utf-8"; // JSON is always UTF-8
	const media = chosen && charset !== "utf-8" ? `${MEDIA[format]};charset=${charset}` : MEDIA[format];
	const form = format === "text" && /^\s*[{[]/.test(text); // text that looks like JSON; the server accepts it as text only in a form
	const told = (picked) => {
		const { columns, rows } = as(picked);
		const read = distinct(rows);
		const good = read.filter(({ error }) => !error);
		const problems = read.filter(({ error }) => error).map(({ place, error }) => ({ place, error }));
		if (bad || known !== charset) problems.push({ place: file.name, error: `not all of it is ${known}. Choose its charset, or save it as UTF-8` });
		const count = whole ? good.length : packed ? null : Math.round(good.length / share) || null;
		return { columns, rows: good.slice(0, SHOWN).map(({ cells }) => cells), count, problems };
	};
	const { rows, problems } = told(found);
	if (whole && !rows.length && !problems.length) throw new Unreadable(`${file.name} contains no documents.`);
	return { ...found, as: told, format, media, form, exact: whole, asked: given.charset, charset: known, charsets: !chosen || marked ? [known] : CHARSETS };
}

// Report ids that are not valid, or that an earlier document has.
function distinct(rows) {
	const places = new Map();
	return rows.map((row) => {
		if (row.error || row.id === undefined) return row;
		if (["", ".", ".."].includes(row.id) || new Blob([row.id]).size > MAX_ID_BYTES) return { ...row, error: `“${row.id.slice(0, 40)}” can't be an id` };
		if (places.has(row.id)) return { ...row, error: `“${row.id}” is already the id of ${places.get(row.id)}` };
		places.set(row.id, row.place);
		return row;
	});
}

// The first text of a file, of the charset that a mark at its beginning names, or `asked`, or guessed; `bad`: it is another
// one. `share`: how much of its bytes that is.
async function beginning(file, asked) {
	const start = await bytesOf(file.slice(0, 4).stream().getReader(), file);
	const begins = ({ bytes }, magic) => magic.every((byte, i) => bytes[i] === byte);
	if (begins(start, ZSTD)) throw new Unreadable("Browsers can't look into zstd. Pack it with gzip, or upload it with curl.");
	const packed = begins(start, GZIP);
	const stream = packed ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.stream();
	const { bytes, whole } = await bytesOf(stream.getReader(), file);
	const fails = (charset) => {
		try {
			const text = new TextDecoder(charset, { fatal: true }).decode(bytes, { stream: !whole });
			return charset.startsWith("windows") && /[\x80-\x9f]/.test(text); // bytes that this charset does not use
		} catch {
			return true;
		}
	};
	const marked = Object.keys(BOMS).find((charset) => begins({ bytes }, BOMS[charset]));
	const wide = bytes[0] && bytes[1] === 0 ? "utf-16le" : bytes[0] === 0 && bytes[1] && "utf-16be";
	const charset = marked ?? asked ?? (wide || (fails("utf-8") ? "windows-1252" : "utf-8"));
	const text = new TextDecoder(charset).decode(bytes, { stream: !whole });
	if (text.includes("\0")) throw new Unreadable(`${file.name} is not a text file.`);
	return { text, whole, packed, share: bytes.length / file.size, charset, marked, bad: fails(charset) };
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
		// If a file has several gzip members, the browser reads only the first.
		if (!size) throw new Unreadable(`${file.name} can't be read: ${error.message}. Is it a folder, or damaged?`);
	}
	return { bytes: new Uint8Array(await new Blob(pieces).arrayBuffer()), whole };
}

// Guess the format by the name. JSON is often called .txt, and JSON lines .json, so the content decides between these.
function guessed(name, text) {
	const format = SUFFIXES[SUFFIX.exec(name)?.[1]?.toLowerCase()];
	const [first, second = ""] = text.trimStart().split("\n", 2);
	const isDocument = (line) => isObject(parsed(line)) && !("documents" in parsed(line));
	if (format && format !== "text" && format !== "json") return format;
	if (isDocument(first) && (!second.trim() || isDocument(second))) return "ndjson";
	if (/^(\{\s*"documents"\s*:|\[\s*\{)/.test(text.trimStart())) return "json";
	if (format) return format;
	if (first.startsWith("[") || first.trim() === "{") return "json";
	if (first.startsWith("{")) return "ndjson";
	const cells = (mark) => [first, second].map((line) => line.split(mark).length);
	const table = (mark) => cells(mark)[0] > 1 && cells(mark)[0] === cells(mark)[1];
	return table("\t") || (table(",") && /(^|,)"?text"?(,|$)/i.test(first.trim())) ? "csv" : "text";
}

const isInteger = (value) => typeof value === "bigint" || Number.isInteger(value);

// Return whether the server can store all numbers in a value: 64-bit integers and finite numbers.
const isKept = (value) =>
	typeof value === "bigint" ? value >= -(2n ** 63n) && value < 2n ** 64n : typeof value === "number" ? Number.isFinite(value) : Object(value) !== value || Object.values(value).every(isKept);

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// The name of the texts: one that is usual, else that of the longest; `sample` gives some of a name.
function textOf(names, sample) {
	const length = (name) => sample(name).slice(0, 50).join("").length;
	const usual = TEXTS.map((text) => names.find((name) => name.toLowerCase() === text)).find(Boolean);
	return usual ?? names.reduce((best, name) => (length(name) > length(best) ? name : best), names[0]);
}

// The name of the ids: `own` if it is not that of the texts, else one that is usual, of which each row has its own.
function idOf(own, text, names, all) {
	const unique = (ids) => ids.every((id) => typeof id === "string" && strip(id)) && new Set(ids).size === ids.length;
	const usual = () => IDS.map((id) => names.find((name) => name.toLowerCase() === id)).find((name) => name && name !== text && unique(all(name)));
	return (own !== text && own) || (usual() ?? "");
}

// Leave out the last line if it may be incomplete.
const linesOf = (text, whole) =>
	(whole ? text : text.slice(0, text.lastIndexOf("\n") + 1)).split(/\r*\n|\r+$/).map((line, i) => ({ place: `line ${i + 1}`, line })).filter(({ line }) => strip(line));

function lines(text, whole) {
	const rows = linesOf(text, whole).map(({ place, line }) => ({ place, cells: [line] }));
	return { as: () => ({ columns: [{ name: "line", role: "text" }], rows }) };
}

const ndjson = (text, whole) => objects(linesOf(text, whole).map(({ place, line }) => ({ place, value: parsed(line) })));

function json(text) {
	const at = text.search(/^\s*\[|"documents"\s*:\s*\[/);
	if (at < 0) throw new Unreadable('A JSON file must contain {"documents": [{"text": …}, …]}, or only the list.');
	return objects(elements(text, text.indexOf("[", at) + 1).map((entry, i) => ({ place: `documents.${i}`, value: parsed(entry) })));
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
	const given = entries.map(({ value }) => value).filter(isObject);
	const outside = (value) => Object.keys(value).filter((name) => name !== "metadata" && value[name] !== null);
	const fields = [...new Set(given.flatMap(outside))];
	const texts = fields.filter((name) => given.some((value) => typeof value[name] === "string"));
	const text = textOf(texts, (name) => given.map((value) => shown(value[name]))) ?? "text";
	const own = fields.includes("id") ? "id" : "";
	return { fields, own, text, id: idOf(own, text, texts, (name) => given.map((value) => value[name])), as };

	function as({ text, id }) {
		const ids = id || (text === "id" ? "" : "id");
		const own = Object.keys(ROLES).filter((name) => name !== text && name !== ids);
		const others = (value) => outside(value).filter((name) => ![text, ids, ...own].includes(name));
		const wrong = (value) => {
			if (value === undefined) return "not JSON";
			if (!isObject(value)) return "must be an object";
			if (typeof value[text] !== "string") return `${text}: must be a string`;
			if (id && id !== "id" && !(id in value)) return `${id}: is required`;
			if (typeof (value[ids] ?? "") !== "string" && !isInteger(value[ids])) return `${ids}: must be a string or an integer`;
			if (!isObject(value.metadata ?? {})) return "metadata: must be an object";
			const expiry = own.includes(EXPIRY) && (value[EXPIRY] ?? null) !== null && WRONG.moment(written(value[EXPIRY]));
			if (expiry) return `${EXPIRY}: ${expiry}`;
			const twice = others(value).find((name) => Object.hasOwn(value.metadata ?? {}, name));
			if (twice !== undefined) return `${twice}: is also a field of metadata`;
			return isKept(value) ? "" : "contains a number that is too large to be stored";
		};
		const rows = entries.map(({ place, value }) => {
			const error = wrong(value);
			if (error) return { place, error };
			const metadata = { ...value.metadata, ...Object.fromEntries(others(value).map((name) => [name, value[name]])) };
			const told = Object.fromEntries(own.map((name) => [ROLES[name], value[name] ?? undefined]));
			return { place, id: value[ids]?.toString(), text: value[text], ...told, metadata };
		});
		const good = rows.filter(({ error }) => !error);
		const columns = [
			...(good.some(({ id }) => id !== undefined) ? [{ name: ids, role: "id" }] : []),
			{ name: text, role: "text" },
			...own.map((name) => ({ name, role: ROLES[name] })).filter(({ role }) => good.some((row) => row[role] !== undefined)),
			...[...new Set(good.flatMap(({ metadata }) => Object.keys(metadata)))].map((name) => ({ name, role: "metadata" })),
		];
		good.forEach((row) => (row.cells = columns.map(({ name, role }) => shown(role === "metadata" ? row.metadata[name] : row[role]))));
		return { columns, rows };
	}
}

const shown = (value) => (value === undefined || value === null ? "" : written(value));

function csv(text, whole) {
	const { error, columns, rows } = read(text, whole);
	if (error) throw new Unreadable(`The header can't be read. ${error}.`);
	const fields = columns.map(({ name }) => name);
	if (!fields.length) throw new Unreadable("The first line names no columns.");
	const twice = fields.find((name, i) => fields.indexOf(name) < i);
	if (twice !== undefined) throw new Unreadable(`The header names the column “${twice}” twice. Rename one of them.`);
	const at = (name) => columns.find((column) => column.name === name)?.at;
	const values = (name) => rows.filter(({ error }) => !error).map(({ fields }) => fields[at(name)]);
	const texts = textOf(fields, values);
	const [own, expiry] = ["id", EXPIRY].map((wanted) => {
		const alike = fields.filter((name) => name.toLowerCase() === wanted);
		return fields.includes(wanted) ? wanted : alike.length === 1 ? alike[0] : ""; // the server's default
	});
	return { fields, own, text: texts, id: idOf(own, texts, fields, values), as };

	function as({ text, id, types = new Map() }) {
		const role = ({ name }) => (name === text ? "text" : name === id ? "id" : name === expiry ? "expiry" : "metadata");
		const typeOf = (column) => (role(column) === "expiry" ? "moment" : (types.get(column.name) ?? column.type));
		const asked = columns.map((column) => ({ ...column, role: role(column), given: column.type, type: typeOf(column) }));
		const [others, read] = typed(asked.filter(({ role }) => role !== "text" && role !== "id"), rows);
		const all = asked.map((column) => others.find(({ at }) => at === column.at) ?? { ...column, type: "string" });
		const cell = ({ at, type, guess }, fields) => ((type ?? guess) === "string" ? fields[at] : strip(fields[at]));
		return { columns: all, rows: read.map((row) => ({ ...row, id: row.fields[at(id)] || undefined, cells: row.error ? [] : all.map((column) => cell(column, row.fields)) })) };
	}
}
