// Search by example: documents that hits resemble, and documents that hits do not resemble. The address has their ids.

import { call } from "./api.js";
import { changed } from "./app.js";
import { el, fill } from "./dom.js";
import { chip } from "./filters.js";
import { json, short } from "./format.js";
import { titleOf } from "./hits.js";

export const NONE = { like: null, unlike: null };

// Return `positive` and `negative` for the API, or null without a positive example.
export function examplesOf(address) {
	const [positive, negative] = [address.getAll("like"), address.getAll("unlike")];
	return positive.length ? { positive, ...(negative.length && { negative }) } : null;
}

// Return links that search with an additional example. They keep filters and options, and replace the query.
export function links(address, corpus, { id, title }) {
	const like = examplesOf(address);
	const to = (name, changes) => el("a", { href: changed(address, { corpus, q: null, ...changes }), "aria-label": `${name}: ${title}` }, name);
	return [
		to("More like this", { like: [...(like?.positive ?? []), id] }),
		like && to("Not like this", { unlike: [...(like.negative ?? []), id] }),
	];
}

// Return a chip for each example, with the title of its document as soon as it is known. go(changes) changes the address.
export function chips(corpus, { positive, negative = [] }, go, signal) {
	const without = (ids, id) => ids.filter((one) => one !== id);
	const alone = positive.length === 1; // negative examples need a positive example
	const removals = [
		...positive.map((id) => ["like", id, alone ? NONE : { like: without(positive, id) }]),
		...negative.map((id) => ["not like", id, { unlike: without(negative, id) }]),
	];
	const names = removals.map(([kind, id]) => el("span", `${kind} ${short(id)}`));
	titles(corpus, [...positive, ...negative], signal).then((found) => {
		removals.forEach(([kind, id], i) => found.has(id) && fill(names[i], `${kind} ${found.get(id)}`));
	});
	return removals.map(([, , changes], i) => chip(names[i], () => go(changes)));
}

// Return titles by id. If they can't be loaded, return none, and the ids are shown.
async function titles(corpus, ids, signal) {
	const asked = new URLSearchParams({ limit: ids.length, filter: json({ $id: { $in: ids } }) });
	try {
		const { documents } = await call(`corpora/${corpus}/documents?${asked}`, { signal });
		return new Map(documents.map((document) => [document.id, titleOf(document)]));
	} catch {
		return new Map();
	}
}
