// Message of a search without hits, and suggestions before the first search.

import { noDocuments } from "./chooser.js";
import { button, div } from "./controls.js";
import { el } from "./dom.js";
import { empty } from "./states.js";

// Example queries for the demo corpus.
const QUERIES = { "python-docs": ["pick a random element of a list", "read a gzip file", "tell whether a year has 366 days"] };

// Example queries of a corpus, if it has any. ask(text) searches for a text.
export function suggestions(corpus, ask) {
	const queries = corpus.documents && QUERIES[corpus.name];
	return queries && [el("p.muted", "Ask for something in your own words, for example:"), div("chips", queries.map((text) => button(text, () => ask(text), { class: "chip" })))];
}

// `asked` is "query" or "like", or neither for filters only. go(changes) changes the address.
export function nothing(corpus, { asked, filtered, mode, grouped, go }) {
	if (!corpus.documents) return noDocuments(corpus);
	if (filtered) {
		const title = asked ? "No document matches the query and the filters" : "No document matches the filters";
		return empty(title, "Remove a filter, or search for something else.", button("Clear the filters", () => go({ filter: null })));
	}
	if (grouped) return empty("No hit has the field of the groups", "Group by another field, or by nothing.", button("Group by nothing", () => go({ group: null })));
	if (asked === "like") return empty("There is no other document", "The corpus has no documents besides the examples.");
	if (mode !== "lexical") return noDocuments(corpus);
	if (corpus.vectors === "own") return empty("No document has any of these words", "Write them differently.");
	return empty("No document has any of these words", "Write them differently, or search by meaning.", button("Search by meaning", () => go({ mode: null })));
}
