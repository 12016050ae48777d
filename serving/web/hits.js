// A hit: its score, its words and what can be done with it.

import { call } from "./api.js";
import { link } from "./app.js";
import { button, div, facts, status } from "./controls.js";
import { el, fill } from "./dom.js";
import { count, written } from "./format.js";
import { marked } from "./passages.js";
import { copier } from "./snippets.js";
import { failure, left } from "./states.js";

const DIGITS = 3;
const MEANS = { dense: "Cosine", lexical: "BM25", hybrid: "Reciprocal rank fusion" };

// One hit of `corpus`; `best`: the score of the first one, by which those without a greatest are measured. `opened`: those that
// are open; toggled() is called when it changes.
export function hit(found, { corpus, mode, best, signal, opened, toggled }) {
	const { id, text, metadata, highlights = [], span = null } = found;
	const title = typeof metadata.title === "string" && metadata.title ? metadata.title : id;
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
		const where = span && `a passage, characters ${count(span.start)} to ${count(span.end)}`;
		const about = [title !== id && `id ${id}`, where].filter(Boolean).join(" · ");
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
	return el(
		"li.hit.card",
		score(found, mode, best),
		el("div", el("h2", opens), words, saying(metadata, title), more),
	);
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
	const told = Object.entries(metadata).filter(([field, value]) => value !== "" && !(field === "title" && value === title));
	return told.length > 0 && facts(told.map(([field, value]) => [field, written(value)]));
}
