// Which corpus a view is about.

import { call } from "./api.js";
import { link } from "./app.js";
import { labelled, select } from "./controls.js";
import { el } from "./dom.js";
import { count } from "./format.js";
import { empty } from "./states.js";

// All corpora, as the API describes them.
export const corpora = async (signal) => (await call("corpora", { signal })).corpora;

// The corpus that the address names, or the one that holds most; undefined where there is none.
export const wanted = (listed, name) =>
	name ? listed.find((corpus) => corpus.name === name) : [...listed].sort((a, b) => b.documents - a.documents)[0];

// A labelled select; `chosen(corpus)` is called when another one is chosen.
export function chooser(listed, current, chosen) {
	const options = listed.map(({ name, documents }) => [name, `${name} (${count(documents)})`]);
	return labelled("Corpus", select(options, current.name, (chosenName) => chosen(listed.find(({ name }) => name === chosenName))));
}

// What a view shows that needs a corpus while there is none, or that has none of the documents of one.
export const noCorpora = (named) =>
	named
		? empty(`There is no corpus “${named}”`, "It was deleted, or has another name.", el("a", { href: link("search") }, "Search another"))
		: toAdd("There is no corpus yet", "Add a file of texts, and it can be searched at once.");
export const noDocuments = (corpus) => toAdd("This corpus is empty", "Add a file of texts to it.", { corpus: corpus.name });

const toAdd = (name, text, address) => empty(name, text, el("a.button.primary", { href: link("corpora", address) }, "Add a file"));
