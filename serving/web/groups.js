// Groups of points by the values of a field. Points of a group have the same colour.

import { count } from "./format.js";

const SHADES = 5; // shades for numbers
const HUES = [262, 50, 155, 340, 95, 210, 300, 25]; // hues for other values, in degrees of oklch; neighbours differ much
const REST = "rest";

// The groups of the values of all points, [{ name, kind, style }] with what CSS colours them by, and the group of a value.
export function grouped(values) {
	const known = values.filter((value) => value !== null);
	const distinct = new Set(known);
	const numbers = distinct.size > HUES.length && known.every((value) => typeof value === "number");
	const { groups, of } = numbers ? shades(known) : kinds(known);
	const missing = known.length < values.length;
	return { groups: missing ? [...groups, { name: "none", kind: REST }] : groups, of: (value) => (value === null ? groups.length : of(value)) };
}

// Divide numbers into ranges with equal numbers of points.
function shades(numbers) {
	const sorted = [...numbers].sort((a, b) => a - b);
	const starts = [...new Set(Array.from({ length: SHADES }, (_, i) => sorted[Math.floor((i * sorted.length) / SHADES)]))];
	const last = (i) => sorted[(i + 1 < starts.length ? sorted.indexOf(starts[i + 1]) : sorted.length) - 1];
	const groups = starts.map((start, i) => ({
		name: start === last(i) ? written(start) : `${written(start)} to ${written(last(i))}`,
		kind: "shade",
		style: { "--share": `${(100 * i) / (starts.length - 1 || 1)}%` },
	}));
	return { groups, of: (value) => starts.findLastIndex((start) => start <= value) };
}

// Return groups for the most frequent values, and one group for all other values.
function kinds(values) {
	const counts = new Map();
	values.forEach((value) => counts.set(value, (counts.get(value) ?? 0) + 1));
	const frequent = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)).slice(0, HUES.length);
	if (frequent.every((value) => typeof value === "number")) frequent.sort((a, b) => a - b);
	const groups = frequent.map((value, i) => hued(String(value), i));
	const others = counts.size - frequent.length;
	if (others) groups.push({ name: `${count(others)} other values`, kind: REST });
	return { groups, of: (value) => (frequent.includes(value) ? frequent.indexOf(value) : frequent.length) };
}

export const hued = (name, i) => ({ name, kind: "kind", style: { "--hue": HUES[i] } });

// Years have no thousands separator.
const written = (number) => (Number.isInteger(number) ? String(number) : number.toPrecision(4));
