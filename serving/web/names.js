// Names of corpora.

import { el } from "./dom.js";

const LONGEST = 64;

// Return a field for the name of a corpus.
export const nameField = (value, attributes) =>
	el("input", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}", autocomplete: "off", spellcheck: "false", value, ...attributes });

// Return a note about a name that no corpus has.
export const told = ({ validity }) =>
	validity.valid ? "A new corpus." : `A name is letters, digits, dots, dashes and underscores, ${LONGEST} at most. It begins with a letter or digit.`;

// Return a valid name that resembles a text.
export const like = (text) => text.replace(/[^\w.-]+/g, "-").replace(/^[^A-Za-z0-9]+|-+$/g, "").slice(0, LONGEST) || "corpus";

// Return the first free name of: name, name-restored, name-restored-2 and so on.
export function free(name, taken) {
	for (let i = 0; ; i++) {
		const end = ["", "-restored"][i] ?? `-restored-${i}`;
		const one = name.slice(0, LONGEST - end.length) + end;
		if (!taken.includes(one)) return one;
	}
}
