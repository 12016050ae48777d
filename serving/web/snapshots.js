// The snapshots of a corpus: list, download, restore, delete.

import { call, send } from "./api.js";
import { ask } from "./ask.js";
import { button, div, labelled, status } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, counted, date } from "./format.js";
import { hasKey } from "./key.js";
import { free, nameField, told } from "./names.js";
import { failure, left, loading } from "./states.js";

const SAVED_MS = 60_000;

// `begin({ path, method, body })` starts a job; `where` is `askWhere` with the existing corpora.
export function snapshots(corpus, { begin, where, signal }) {
	const list = div("works");
	const path = `corpora/${corpus}/snapshots`;
	let asked = 0;
	const about = (one) => `Of ${corpus}, made ${date(one.created)}`;
	const at = (id) => `${path}/${id}`;

	async function load() {
		const mine = ++asked;
		if (!list.hasChildNodes()) fill(list, loading("Looking for snapshots …"));
		try {
			const found = (await call(path, { signal })).snapshots;
			const none = el("p.muted", "There is none yet. A snapshot is the whole corpus as it is at one moment, in one file.");
			if (mine === asked) fill(list, found.length ? el("ul.works", found.map(row)) : none);
		} catch (error) {
			if (mine === asked) failed(error);
		}
	}

	function failed(error) {
		if (!left(error)) fill(list, failure(error, load));
	}

	function row(one) {
		return el(
			"li.heading",
			el("span", date(one.created), " · ", counted(one.documents, "document"), " · ", bytes(one.bytes)),
			div(
				"actions",
				el("a.button", { href: at(one.id), download: `${corpus}-${one.id}.tar.zst`, onclick: (event) => withKey(event, one) }, "Download"),
				button("Restore …", () => restore(one)),
				button("Delete …", () => remove(one)),
			),
		);
	}

	// A link can't send a key. If there is a key, the page fetches and saves the file instead, also after the user leaves the view.
	async function withKey(event, { id }) {
		if (!hasKey()) return;
		event.preventDefault();
		const pressed = event.target;
		if (pressed.ariaBusy) return;
		[pressed.ariaBusy, pressed.textContent] = ["true", "Downloading …"];
		try {
			const href = URL.createObjectURL(await (await send(at(id))).blob());
			el("a", { href, download: pressed.download }).click();
			setTimeout(() => URL.revokeObjectURL(href), SAVED_MS);
		} catch (error) {
			failed(error);
		}
		[pressed.ariaBusy, pressed.textContent] = [null, "Download"];
	}

	async function restore(one) {
		const given = await where({
			title: "Restore a snapshot",
			text: `${about(one)}: ${counted(one.documents, "document")}.`,
			name: corpus,
		});
		if (given) begin({ path: `corpora/${given}/restore`, method: "PUT", body: { snapshot: one.id, of: corpus } });
	}

	async function remove(one) {
		const text = `${about(one)}. The file will be deleted. The corpus stays.`;
		if (!(await ask({ title: "Delete this snapshot?", text, action: "Delete it", danger: true }))) return;
		try {
			await call(at(one.id), { method: "DELETE", signal });
			await load();
		} catch (error) {
			failed(error);
		}
	}

	return { element: list, load };
}

// The name of the corpus to be restored, null for none. A corpus is replaced only if the user types its name: `name` is offered
// if it is neither that of a corpus nor among those `taken`, else one like it. known() returns the corpora by their names and aliases. The
// question is asked again if another corpus has the name by the time of the answer.
export async function askWhere({ title, text, name, known, taken }) {
	let corpora = await known();
	let into = free(name, [...corpora.keys(), ...taken]);
	for (;;) {
		const said = status();
		const field = nameField(into, { name: "into" });
		const ready = (given) => {
			const there = corpora.get(given.get("into"));
			said.className = there ? "warn" : "muted";
			said.textContent = there ? `Replaces ${there.name}, which ${there.state === "damaged" ? "is damaged" : `holds ${counted(there.documents, "document")} now`}.` : told(field);
			return field.validity.valid;
		};
		const given = await ask({ title, text: `${text} It is checked before it serves.`, fields: [labelled("Into the corpus", field), said], action: "Restore", danger: corpora.has(into), ready });
		if (!given) return null;
		const before = corpora;
		[into, corpora] = [given.get("into"), await known()];
		if (corpora.get(into)?.name === before.get(into)?.name) return into;
	}
}
