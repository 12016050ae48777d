// CSV reader with the rules of the server: strict, and with types of columns.

const SPACE = String.raw`[[\s\x1c-\x1f\x85]--\ufeff]+`; // white space by the rules of Python, as on the server
const ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "gv");
const TYPED = /^(.*):(number|boolean|date|string)$/s;
const INTEGER = /^[+-]?0*(\d+)$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const PADDED = /^(\+|-?0\d)/; // a telephone number, a postal code
const DATE = /^(?!0000)\d{4}-\d\d-\d\d([T ]([01]\d|2[0-3]):[0-5]\d(:([0-5]\d|60)(\.\d+)?)?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)?)?$/i;
const MOMENT = /[T ]\d\d:\d\d:[0-5]\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/i; // a date with a time and an offset, as in RFC 3339
const [LEAST, MOST] = [-(2n ** 63n), 2n ** 64n - 1n];

export const strip = (text) => text.replace(ENDS, "");

// Return the reason why a field is not of a type, or "" if it is.
export const WRONG = {
	number(field) {
		const [, digits] = INTEGER.exec(field) ?? [];
		if (digits) return digits.length > 20 || BigInt(field) < LEAST || BigInt(field) > MOST ? "is not from -2^63 to 2^64 - 1" : "";
		return !NUMBER.test(field) ? "is not a number" : Number.isFinite(Number(field)) ? "" : "is too large a number";
	},
	boolean: (field) => (/^(true|false)$/i.test(field) ? "" : "is neither true nor false"),
	date(field) {
		const day = field.slice(0, 10);
		return DATE.test(field) && new Date(day).toJSON()?.startsWith(day) ? "" : "is not a date such as 2024-03-05 or 2024-03-05T08:30:00Z";
	},
	string: () => "",
	moment: (field) => (MOMENT.test(field) && !WRONG.date(field) ? "" : "is not a timestamp with a time and an offset, such as 2030-01-31T08:30:00Z"),
};

// Return the type of a column from all its fields.
function guess(fields) {
	const given = fields.map(strip).filter(Boolean);
	const are = (kind) => given.every((field) => !WRONG[kind](field) && (kind !== "number" || !PADDED.test(field)));
	return given.length ? Object.keys(WRONG).find(are) : "string";
}

// The columns with a name, [{ name, at, type }] where the header names the type; their rows, [{ place, fields, error }].
export function read(text, whole) {
	const lineOf = (at) => text.slice(at).split("\n", 1)[0];
	let [at, line] = [0, 1];
	const next = () => ([at, line] = [at + lineOf(at).length + 1, line + 1]);
	const blank = () => at < text.length && !strip(lineOf(at));
	while (blank()) next();
	const excel = /^"?sep=([^"\r\n])"?\s*$/i.exec(lineOf(at));
	if (excel) next();
	while (blank()) next();
	const names = lineOf(at).split('"').filter((_, i) => i % 2 === 0).join("");
	const count = (mark) => names.split(mark).length;
	const delimiter = excel?.[1] ?? [",", ";", "\t"].reduce((best, one) => (count(one) > count(best) ? one : best));
	const others = names.split(delimiter).slice(1);
	const spaced = others.length > 0 && others.every((name) => name.startsWith(" "));
	const rows = [...rowsOf(text, at, line, delimiter, spaced)];
	const header = rows.shift() ?? { fields: [] };
	if (!whole) rows.pop(); // the last row may be incomplete
	const columns = header.fields.map((name, i) => {
		const [, before, type] = TYPED.exec(strip(name)) ?? [];
		return { name: type ? strip(before) : strip(name), at: i, type };
	});
	const wrong = ({ fields, error }) => {
		const fits = fields.length >= columns.length && !fields.slice(columns.length).some(strip);
		return error ?? (fits ? undefined : `has ${fields.length} fields, but the header has ${columns.length}`);
	};
	return {
		error: header.error && `${header.place}: ${header.error}`,
		columns: columns.filter(({ name }) => name),
		rows: rows.filter(({ fields, error }) => error || fields.some(strip)).map((row) => ({ ...row, error: wrong(row) })),
	};
}

// The same rows, those wrong whose fields are not of the types; `columns` get the guessed type where they have none.
export function typed(columns, rows) {
	const wrong = (fields) => {
		const given = columns.map(({ name, at, type = "string" }) => [name, fields[at], strip(fields[at]) && WRONG[type](strip(fields[at]))]);
		const [name, field, error] = given.find(([, , said]) => said) ?? [];
		return error && `${name}: “${field.slice(0, 40)}” ${error}`;
	};
	const read = rows.map((row) => ({ ...row, error: row.error ?? wrong(row.fields) }));
	const fields = (column) => (column.type ? rows : read).filter(({ error }) => !error).map((row) => row.fields[column.at]);
	return [columns.map((column) => ({ ...column, guess: guess(fields(column)) })), read];
}

// A quoted field may contain line ends. After an error, the next line begins a new row.
function* rowsOf(text, at, line, delimiter, spaced) {
	const mark = `\\u${delimiter.charCodeAt(0).toString(16).padStart(4, "0")}`;
	const quoted = `${spaced ? " *(?! )" : ""}"([^"]*(?:""[^"]*)*)"(?!")`;
	const whole = new RegExp(quoted, "y");
	const field = new RegExp(`(?:${quoted}|${spaced ? " *(?! )" : ""}((?!")[^${mark}\r\n]*))(?:(${mark})|\r*(?:\n|$))`, "y");
	const opens = new RegExp(`${spaced ? " *" : ""}"`, "y");
	const matches = (pattern, from) => ((pattern.lastIndex = from), pattern.exec(text));
	let [fields, begins] = [[], at];
	while (at < text.length || fields.length) {
		const found = matches(field, at);
		let error;
		if (found) {
			fields.push(found[1]?.replaceAll('""', '"') ?? found[2]);
			at = field.lastIndex;
			if (found[3]) continue;
		} else {
			const open = matches(opens, at);
			const closed = open && matches(whole, at);
			error = !open ? "a line ends with CR only" : closed ? "a quote within a field must be doubled" : "a quote is left open";
			const end = open && !closed ? -1 : text.indexOf("\n", closed ? whole.lastIndex : text.indexOf("\r", at));
			at = end < 0 ? text.length : end + 1;
		}
		yield { place: `line ${line}`, fields, error: error && `not CSV: ${error}` };
		line += text.slice(begins, at).split("\n").length - 1;
		[fields, begins] = [[], at];
	}
}
