// What a search says that found nothing.

import { noDocuments } from "./chooser.js";
import { button } from "./controls.js";
import { empty } from "./states.js";

// `asked`: "query", "like" or neither, where filters alone were; go(changes) changes the address.
export function nothing(corpus, { asked, filtered, mode, go }) {
	if (!corpus.documents) return noDocuments(corpus);
	if (filtered) {
		const title = asked ? "Nothing fits query and filters" : "Nothing fits the filters";
		return empty(title, "Take a filter away, or ask for something else.", button("Clear the filters", () => go({ filter: null })));
	}
	const like = asked === "like";
	if (mode !== "lexical") return like ? empty("There is no other document", "This one is all that the corpus holds.") : noDocuments(corpus);
	const byMeaning = button("Search by meaning", () => go({ mode: null }));
	if (like) return empty("No other document has any of its words", "Others may still mean the same.", byMeaning);
	return empty("No document has any of these words", "Write them in another way, or go by what they mean.", byMeaning);
}
