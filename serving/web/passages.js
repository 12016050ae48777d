// Texts as the server counts them: spans are in characters, of which JavaScript has two where Unicode has one.

import { el } from "./dom.js";

const SHORT = 3; // characters of words that are marked only where no longer one is: "the", "of", "to"

const SURROGATES = /[\ud800-\udfff]/;

const characters = (text) => (SURROGATES.test(text) ? Array.from(text) : text);
const between = (of, start, end) => (typeof of === "string" ? of.slice(start, end) : of.slice(start, end).join(""));

// The text with the spans marked, as children of an element.
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
