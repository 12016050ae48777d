
export const count = (number) => number.toLocaleString("en");

export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const written = (value) => (typeof value === "string" ? value : json(value));

export const readable = (value) => dated(value) ?? written(value);

const DATE = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?)?$/i;

// Parse a date or time in the metadata by the rules of filters. Return null for any other value. Times are in UTC.
export function dated(value) {
	const [, day, time, zone = "Z"] = (typeof value === "string" && DATE.exec(value)) || [];
	const midnight = new Date(day);
	if (Number.isNaN(midnight.valueOf()) || midnight.toISOString().slice(0, day.length) !== day) return null; // the day does not exist, such as February 30
	const moment = time ? new Date(`${day}T${time}${zone.toUpperCase()}`) : midnight;
	if (Number.isNaN(moment.valueOf())) return null;
	return moment.toLocaleString("en", { dateStyle: "medium", timeZone: "UTC", ...(time && { timeStyle: "short" }) }) + (time ? " UTC" : "");
}

const MADE = /^[0-9a-f]{32}$/; // an id that the server generated, which users don't know

export const isMade = (id) => MADE.test(id);

export const short = (id) => (isMade(id) ? `${id.slice(0, 8)}…` : id);

// Return the JSON of a value that parsed() returned.
export const json = (value) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? JSON.rawJSON(one) : one));

// Parse JSON. Integers that a double would round become BigInt. Return undefined if the text is not JSON.
export function parsed(text) {
	const exact = (_, value, { source }) => (Number.isSafeInteger(value) || !/^-?\d+$/.test(source) ? value : BigInt(source));
	try {
		return JSON.parse(text, /(?<![.\d])\d{16}/.test(text) ? exact : undefined);
	} catch {
		return undefined;
	}
}

export function bytes(number) {
	const units = ["B", "kB", "MB", "GB", "TB"];
	const power = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, number)) / 3));
	const scaled = number / 1000 ** power;
	return `${power && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power]}`;
}

export function duration(seconds) {
	if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
	if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
	const minutes = Math.round(seconds / 60);
	return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const date = (seconds) =>
	new Date(1000 * seconds).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
