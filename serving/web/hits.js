// A hit: its score, its words and what can be done with it.

import { call } from "./api.js";
import { link } from "./app.js";
import { button, div, facts, status } from "./controls.js";
import { el, fill } from "./dom.js";
import { count, counted, written } from "./format.js";
import { marked } from "./passages.js";
import { copier } from "./snippets.js";
import { failure, left } from "./states.js";

const DIGITS = 3;
const TITLES = ["title", "name", "heading", "subject", "headline"];
const TITLE = 80; // characters of a title
const MADE = /^[0-9a-f]{32}$/; // an id that the server made, which tells nothing
const MEANS = { dense: "Cosine", lexical: "BM25", hybrid: "Reciprocal rank fusion" };

// One hit of `corpus`, and the `others` that have the same text. `best`: the score of the first one, by which those without a
// greatest are measured; `weak`: the cosine up to which a hit may be chance, or null. `opened`: those that are open; toggled() is
// called when it changes.
export function hit([found, ...others], { corpus, mode, best, weak, signal, opened, toggled }) {
	const { id, text, metadata, highlights = [], span = null } = found;
	const title = titleOf(found);
	const key = `${span?.start ?? ""} ${id}`;
	const words = el("p.text.clip", marked(text, highlights));
	const more = el("div.opened", { hidden: true });
	const opens = el("button.opens", { type: "button", onclick: toggle }, title);

	function toggle() {
		if (!opened.delete(key)) opened.add(key);
		show();
		toggled();
	}

	function show() {
		const open = opened.has(key);
		opens.setAttribute("aria-expanded", String(open));
		words.classList.toggle("whole", open);
		more.hidden = !open;
		if (open && !more.hasChildNodes()) fill(more, actions());
	}

	function actions() {
		const said = status();
		const like = { corpus, like: id, ...(span && { span: `${span.start}-${span.end}` }) };
		const chance = isWeak(found, mode, weak) && `a weak hit: unrelated sentences have cosines of up to ${weak.toFixed(2)}`;
		const where = span && `a passage, characters ${count(span.start)} to ${count(span.end)}`;
		const about = [title !== id && `id ${id}`, where, chance].filter(Boolean).join(" · ");
		return [
			about && el("p.muted.clip", about),
			div(
				"actions",
				el("a.button", { href: link("search", like) }, "More like this"),
				span && button("The whole document", document),
				copier("Copy the text", () => words.textContent, said),
				said,
			),
		];
	}

	async function document(event) {
		const pressed = event.currentTarget;
		try {
			const whole = await call(`corpora/${corpus}/documents/${encodeURIComponent(id)}`, { signal });
			fill(words, marked(whole.text, [span]));
			opens.focus();
			pressed.remove();
		} catch (error) {
			if (!left(error)) more.append(failure(error));
		}
	}

	show();
	const same = others.map((other) => el("li", titleOf(other), saying(other.metadata, titleOf(other))));
	return el(
		`li.hit.card${isWeak(found, mode, weak) ? ".weak" : ""}`,
		score(found, mode, best),
		el(
			"div",
			el("h2", opens),
			words,
			saying(metadata, title),
			same.length > 0 && el("details.same.clip", el("summary", `The same text in ${counted(same.length, "other document")}`), el("ul", same)),
			more,
		),
	);
}

// By both, only what has none of the words.
export const isWeak = ({ score, dense, lexical }, mode, weak) =>
	weak !== null && (mode === "hybrid" ? lexical === null && dense <= weak : mode === "dense" && score <= weak);

// Hits with one text, under the best of them.
export const byText = (hits) => [...Map.groupBy(hits, ({ text }) => text).values()];

// What the metadata call it, or its id; of an id that was made, a short text of the metadata instead.
function titleOf({ id, metadata }) {
	const isTitle = (value) => typeof value === "string" && value.trim() !== "" && value.length <= TITLE;
	const named = TITLES.map((field) => metadata[field]).find(isTitle);
	return named ?? (MADE.test(id) ? (Object.values(metadata).find(isTitle) ?? `${id.slice(0, 8)}…`) : id);
}

function score(found, mode, best) {
	if (found.score === undefined) return null;
	const share = mode === "dense" ? found.score : found.score / (best || 1);
	const width = `${100 * Math.min(1, Math.max(0, share))}%`;
	return el(
		"div.score",
		{ title: MEANS[mode] },
		el("span.sum", el("span.unseen", "Score "), found.score.toFixed(DIGITS)),
		el("span.bar-of", { "aria-hidden": "true" }, el("span", { style: { width } })),
		mode === "hybrid" && el("span", `meaning ${found.dense.toFixed(2)}`),
		mode === "hybrid" && found.lexical !== null && el("span", `words ${found.lexical.toFixed(1)}`),
	);
}

// What the metadata say, one after the other.
function saying(metadata, title) {
	const told = Object.entries(metadata).filter(([, value]) => value !== "" && value !== title);
	return told.length > 0 && facts(told.map(([field, value]) => [field, written(value)]));
}
