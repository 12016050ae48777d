// Spans of texts. The server counts Unicode characters, some of which have two units in JavaScript.

import { el } from "./dom.js";

const SHORT = 3; // maximum characters of words such as "the", which are marked only if no longer word is

const SURROGATES = /[\ud800-\udfff]/;

const characters = (text) => (SURROGATES.test(text) ? Array.from(text) : text);
const between = (of, start, end) => (typeof of === "string" ? of.slice(start, end) : of.slice(start, end).join(""));

// Return the text with marked spans, as children of an element.
export function marked(text, spans, tag = "mark") {
	const whole = characters(text);
	const parts = [];
	let at = 0;
	for (const { start, end } of telling(spans)) {
		parts.push(between(whole, at, start), el(tag, {}, between(whole, start, end)));
		at = end;
	}
	return [...parts, between(whole, at)].filter((part) => part !== "");
}

function telling(spans) {
	const long = spans.filter(({ start, end }) => end - start > SHORT);
	return long.length ? long : spans;
}
