// Message of a search without hits.

import { noDocuments } from "./chooser.js";
import { button } from "./controls.js";
import { empty } from "./states.js";

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
