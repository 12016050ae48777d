// Numbers of matching passages, and of documents with each value of the filters.

import { call } from "./api.js";
import { el } from "./dom.js";
import { isEmpty } from "./filters.js";
import { counted, json } from "./format.js";
import { left } from "./states.js";

const MOST = 16; // maximum fields of a request

export class Counter {
	constructor(corpus, signal) {
		Object.assign(this, { corpus, signal, element: el("p.muted") });
	}

	// Count again if something has changed. `words` has query and options of a lexical search.
	// Hits never wait for the counts. If counting fails, there are no counts.
	async count(words, filter, panel) {
		const key = json([words, filter]);
		if (!panel || !this.corpus.documents || this.corpus.state !== "ready" || key === this.key) return;
		this.key = key;
		try {
			const { total, facets } = await this.counts(words, filter, panel.counted);
			if (key !== this.key) return; // a later request has replaced this one
			panel.showCounts(facets);
			this.element.textContent = told(total, words, filter);
		} catch (error) {
			if (left(error) || key !== this.key) return;
			this.key = null; // the next search counts again
			panel.showCounts();
			this.element.textContent = "";
		}
	}

	// The values of a field are counted without the field's own condition, because the user may choose them instead.
	async counts(words, filter, fields) {
		const some = fields.slice(0, MOST);
		const limited = some.filter((field) => Object.hasOwn(filter, field));
		const { total, facets = {} } = await this.ask(words, filter, some.filter((field) => !limited.includes(field)), true);
		for (const field of limited) {
			const { [field]: _, ...others } = filter;
			Object.assign(facets, (await this.ask(words, others, [field], false)).facets);
		}
		return { total, facets };
	}

	ask(words, filter, facets, total) {
		const sought = words ?? { vector: [1, ...Array(this.corpus.dim - 1).fill(0)] }; // any vector works
		const body = { ...sought, k: 1, with_text: false, with_metadata: false, facets, total, ...(!isEmpty(filter) && { filter }) };
		return call(`corpora/${this.corpus.name}/search`, { body, signal: this.signal });
	}
}

function told(total, words, filter) {
	const [has, matches, is] = total === 1 ? ["has", "matches", "is"] : ["have", "match", "are"];
	const said = [words && `${has} words of the query`, !isEmpty(filter) && `${matches} the filters`].filter(Boolean).join(" and ");
	return `${counted(total, "passage")} ${said || `${is} searched`}.`;
}
