// What a search says that found nothing.

import { noDocuments } from "./chooser.js";
import { button } from "./controls.js";
import { empty } from "./states.js";

// `asked`: "query", "like" or neither, where filters alone were; go(changes) changes the address.
export function nothing(corpus, { asked, filtered, mode, grouped, go }) {
	if (!corpus.documents) return noDocuments(corpus);
	if (filtered) {
		const title = asked ? "Nothing fits query and filters" : "Nothing fits the filters";
		return empty(title, "Take a filter away, or ask for something else.", button("Clear the filters", () => go({ filter: null })));
	}
	if (grouped) return empty("No hit has the field of the groups", "Group by another field, or by nothing.", button("Group by nothing", () => go({ group: null })));
	if (asked === "like") return empty("There is no other document", "The examples are all that the corpus holds.");
	if (mode !== "lexical") return noDocuments(corpus);
	return empty("No document has any of these words", "Write them in another way, or go by what they mean.", button("Search by meaning", () => go({ mode: null })));
}
