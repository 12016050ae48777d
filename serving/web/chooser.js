// Choice of the corpus that a view shows.

import { call } from "./api.js";
import { link } from "./app.js";
import { labelled, select } from "./controls.js";
import { el, fill } from "./dom.js";
import { count } from "./format.js";
import { empty, loading } from "./states.js";

// Return all corpora, as the API describes them.
export const corpora = async (signal) => (await call("corpora", { signal })).corpora;

// Return the corpora by their names and their aliases.
export async function named(signal) {
	const [listed, { aliases }] = await Promise.all([corpora(signal), call("aliases", { signal })]);
	const found = new Map(listed.map((one) => [one.name, one]));
	aliases.forEach(({ alias, corpus }) => found.has(corpus) && found.set(alias, found.get(corpus)));
	return found;
}

// Return the corpora, and the corpus in the address or else the largest one. If there is no corpus, show this in the place.
export async function wanted(place, { address, signal }) {
	fill(place, loading());
	const found = await named(signal);
	const listed = [...new Set(found.values())];
	const name = address.get("corpus");
	const corpus = name ? found.get(name) : listed.toSorted((a, b) => b.documents - a.documents)[0];
	if (!corpus) fill(place, noCorpora(name));
	return { listed, corpus };
}

// Return a labelled select. `chosen(corpus)` is called when the user chooses another corpus.
export function chooser(listed, current, chosen) {
	const options = listed.map(({ name, documents, state }) => [name, `${name} (${state === "damaged" ? state : count(documents)})`]);
	return labelled("Corpus", select(options, current.name, (chosenName) => chosen(listed.find(({ name }) => name === chosenName))));
}

const noCorpora = (named) =>
	named
		? empty(`There is no corpus “${named}”`, "It was deleted, or has another name.", el("a", { href: link("search") }, "Search another"))
		: toAdd("There is no corpus yet", "Add a file of texts, and it can be searched at once.");

// The content of a view for a corpus without documents.
export const noDocuments = (corpus) => toAdd("This corpus is empty", "Add a file of texts to it, or wait for what is being added.", { corpus: corpus.name });

const toAdd = (name, text, address) => empty(name, text, el("a.button.primary", { href: link("corpora", address) }, "Add a file"));
