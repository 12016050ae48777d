// Numbers and other values as people read them.

export const count = (number) => number.toLocaleString("en");

export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

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
