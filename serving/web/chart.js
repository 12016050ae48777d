// Small line charts.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT] = [320, 96];
const [LEFT, RIGHT, TOP, BOTTOM] = [48, 4, 6, 18]; // margins for labels

// lines: lists of [x, y], y null where nothing is known; style of each by its place. marked: an x that is told apart.
// The axis ends at the data, or begins at 0. written: how a y is told.
export function chart(label, lines, { written = String, zero = false, marked = null, ends = null } = {}) {
	const known = lines.flat().filter(([, y]) => y !== null);
	const [xs, ys] = [lines.flat().map(([x]) => x), known.map(([, y]) => y)];
	const [left, right] = [Math.min(...xs), Math.max(...xs)];
	const [least, most] = known.length ? [zero ? 0 : Math.min(...ys), Math.max(...ys)] : [0, 0];
	const across = (x) => LEFT + ((x - left) / (right - left || 1)) * (WIDTH - LEFT - RIGHT);
	const up = (y) => HEIGHT - BOTTOM - ((y - least) / (most - least || 1)) * (HEIGHT - TOP - BOTTOM);
	const path = (points) =>
		points.map(([x, y], i) => (y === null ? "" : `${(points[i - 1]?.[1] ?? null) === null ? "M" : "L"}${across(x).toFixed(1)} ${up(y).toFixed(1)}h0`)).join("");
	const text = (x, y, anchor, said) => svg("text", { x, y, "text-anchor": anchor }, said);
	return svg(
		"svg.chart",
		{ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
		[TOP, HEIGHT - BOTTOM].map((y) => svg("line.axis", { x1: LEFT, x2: WIDTH, y1: y, y2: y })),
		marked !== null && svg("line.marked", { x1: across(marked), x2: across(marked), y1: TOP, y2: HEIGHT - BOTTOM }),
		lines.map((points, i) => svg(`path.line.line${i}`, { d: path(points) })),
		known.length > 0 && text(LEFT - 6, HEIGHT - BOTTOM + 3, "end", written(least)),
		most > least && text(LEFT - 6, TOP + 4, "end", written(most)),
		ends && [text(LEFT, HEIGHT - 3, "start", ends[0]), text(WIDTH, HEIGHT - 3, "end", ends[1])],
	);
}

// A chart with its name and its current value.
export const figure = (name, told, drawn) =>
	el("figure.figure", el("figcaption.row", el("span.muted", name), el("strong", told)), drawn);
