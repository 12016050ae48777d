// A hit with its score, its text and its actions.

import { call } from "./api.js";
import { button, div, facts, scrolled, status, table } from "./controls.js";
import { el, fill } from "./dom.js";
import { count, counted, dated, isMade, readable, short } from "./format.js";
import { marked } from "./passages.js";
import { copier } from "./snippets.js";
import { failure, left } from "./states.js";

const DIGITS = 3;
const TITLES = ["title", "name", "heading", "subject", "headline"];
const TITLE = 80; // maximum characters of a title
const MEANS = { dense: "Cosine", lexical: "BM25", hybrid: "Reciprocal rank fusion", rerank: "Late interaction" };
const RANKINGS = { dense: ["Meaning", "cosine"], lexical: ["Words", "BM25"] };

// One hit of `corpus`, and the `others` that have the same text. `best`: the greatest score, by which those without a bound are
// measured; `means`: what the score is, of MEANS; `weak`: the cosine up to which a hit may be chance, or null. `opened`: those that
// are open; toggled() is called when it changes. `links({ id, title })`: what leads on from it.
export function hit([found, ...others], { corpus, mode, means, best, weak, signal, opened, toggled, links }) {
	const { id, text, metadata, highlights = [], field_highlights: inFields = [], explain, span = null } = found;
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
		const chance = isWeak(found, mode, weak) && `a weak hit: unrelated sentences have cosines of up to ${weak.toFixed(2)}`;
		const about = [title !== id && `id ${id}`, span && `a passage, ${placed(span)}`, chance].filter(Boolean).join(" · ");
		return [
			about && el("p.muted.clip", about),
			div(
				"actions",
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
	const alike = others.some((other) => other.span) ? "other passage" : "other document"; // a document without a span is one passage
	const same = others.map((other) => el("li", titleOf(other), other.span && ` · ${placed(other.span)}`, saying(other.metadata, titleOf(other))));
	return el(
		`li.hit.card${isWeak(found, mode, weak) ? ".weak" : ""}`,
		score(found, mode, means, best),
		el(
			"div",
			div("heading", el("h2", opens), div("links", links({ id, title }))),
			words,
			saying(metadata, title, inFields),
			explain && explained(explain),
			same.length > 0 && el("details.same.clip", el("summary", `The same text in ${counted(same.length, alike)}`), el("ul", same)),
			more,
		),
	);
}

const placed = ({ start, end }) => `characters ${count(start)} to ${count(end)}`;

// In hybrid search, only hits without words of the query can be weak.
export const isWeak = ({ score, dense, lexical }, mode, weak) =>
	weak !== null && (mode === "hybrid" ? lexical === null && dense <= weak : mode === "dense" && score <= weak);

// Group hits with the same text under the best of them.
export const byText = (hits) => [...Map.groupBy(hits, ({ text }) => text).values()];

// Return the document's title from the metadata, or its id. For a generated id, return a short text from the metadata instead.
export function titleOf({ id, metadata }) {
	const isTitle = (value) => typeof value === "string" && value.trim() !== "" && value.length <= TITLE;
	const named = TITLES.map((field) => metadata[field]).find(isTitle);
	return named ?? (isMade(id) ? (Object.values(metadata).find(isTitle) ?? short(id)) : id);
}

function score(found, mode, means, best) {
	if (found.score === undefined) return null;
	const share = ["dense", "rerank"].includes(means) ? found.score : found.score / (best || 1);
	const width = `${100 * Math.min(1, Math.max(0, share))}%`;
	return el(
		"div.score",
		{ title: MEANS[means] },
		el("span.sum", el("span.unseen", "Score "), found.score.toFixed(DIGITS)),
		el("span.bar-of", { "aria-hidden": "true" }, el("span", { style: { width } })),
		mode === "hybrid" && el("span", `meaning ${found.dense.toFixed(2)}`),
		mode === "hybrid" && found.lexical !== null && el("span", `words ${found.lexical.toFixed(1)}`),
	);
}

// List the metadata. `found` has the strings with words of the query.
function saying(metadata, title, found = []) {
	const told = Object.entries(metadata).filter(([, value]) => value !== "" && value !== title);
	const spans = (field, value) => found.find((one) => one.field === field && one.text === value)?.highlights;
	const shown = (field, value) => {
		if (dated(value)) return el("time", { datetime: value, title: value }, dated(value));
		return spans(field, value) ? marked(value, spans(field, value)) : readable(value);
	};
	return told.length > 0 && facts(told.map(([field, value]) => [field, shown(field, value)]));
}

// Show rank and score of a hit in each ranking of the search.
function explained(rankings) {
	const rows = Object.entries(rankings).map(([name, { rank, score: given }]) => {
		const [ranking, unit] = RANKINGS[name];
		const at = rank === null ? "not among the best" : count(rank);
		return [el("th", { scope: "row" }, ranking), el("td.number", at), el("td.number", given === null ? "none" : `${given.toFixed(DIGITS)} (${unit})`)];
	});
	const head = ["Ranking", "Rank", "Score"].map((name, i) => el(i ? "th.number" : "th", { scope: "col" }, name));
	return el("div.explained", scrolled("Ranks and scores", table(head, rows)));
}
