// Search by example: documents that hits resemble, and documents that hits do not resemble. The address has their ids.

import { changed } from "./app.js";
import { el } from "./dom.js";
import { chip } from "./filters.js";
import { short } from "./format.js";

export const NONE = { like: null, unlike: null };

// `positive` and `negative`, as the API has them; null without a positive example.
export function examplesOf(address) {
	const [positive, negative] = [address.getAll("like"), address.getAll("unlike")];
	return positive.length ? { positive, ...(negative.length && { negative }) } : null;
}

// Links that search by one more example. They keep the filters and options, and replace the query.
export function links(address, corpus, { id, title }) {
	const like = examplesOf(address);
	const to = (name, changes) => el("a", { href: changed(address, { corpus, q: null, ...changes }), "aria-label": `${name}: ${title}` }, name);
	return [
		to("More like this", { like: [...(like?.positive ?? []), id] }),
		like && to("Not like this", { unlike: [...(like.negative ?? []), id] }),
	];
}

// A chip for each example; go(changes) changes the address.
export function chips({ positive, negative = [] }, go) {
	const without = (ids, id) => ids.filter((one) => one !== id);
	const alone = positive.length === 1; // negative examples need a positive one
	return [
		...positive.map((id) => chip(`like ${short(id)}`, () => go(alone ? NONE : { like: without(positive, id) }))),
		...negative.map((id) => chip(`not like ${short(id)}`, () => go({ unlike: without(negative, id) }))),
	];
}
