// Numbers and other values as people read them.

export const count = (number) => number.toLocaleString("en");

export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const written = (value) => (typeof value === "string" ? value : json(value));

// JSON of a value that parsed() gave.
export const json = (value) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? JSON.rawJSON(one) : one));

// The value of JSON, a BigInt for each integer that a double would round; undefined where it is none, as a proxy's own page.
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
