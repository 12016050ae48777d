// What a file holds and what becomes of it: the form before it is sent.

import { button, div, labelled, scrolled, select, status, table } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, count, counted } from "./format.js";
import { like, nameField, told } from "./names.js";
import { FORMATS, SUFFIX } from "./preview.js";
import { Upload } from "./uploads.js";

// `found`: what preview() tells of the file; `corpora` are there, `models` the names of the encoders served; `aim`: the corpus
// that it is meant for, if any. readAs(format, corpus) looks at the file anew, send(upload) sends it.
export function review(file, found, { corpora, models, aim, readAs, send, cancel }) {
	const column = (role) => found.columns.find((one) => one.role === role)?.name;
	const picked = { text: column("text"), id: column("id") ?? "" };
	const first = scrolled("First rows");
	const hint = status();
	const names = el("datalist", { id: "corpus-names" }, corpora.map(({ name }) => el("option", { value: name })));
	const corpus = nameField(aim ?? like(file.name.replace(SUFFIX, "")), { list: "corpus-names", oninput: where });
	const model = select(models, models[0]);
	const encoder = labelled("Encoder", model);
	const skip = el("input", { type: "checkbox", checked: found.problems.some(({ place }) => place !== file.name) });
	const cut = el("input", { type: "checkbox", onchange: () => (size.disabled = !cut.checked) });
	const size = el("input", { type: "number", min: 16, max: 100000, value: 200, required: true, disabled: true, "aria-label": "Tokens of a passage" });
	const formats = select(Object.entries(FORMATS), found.format, (other) => {
		formats.value = found.format; // until it is read otherwise, which may fail
		readAs(other, corpus.value);
	});
	const columns = found.columns.map(({ name }) => name);
	const ids = columns.includes("id") ? columns : [["", "(made for each row)"], ...columns];
	const choices = found.roles && [
		labelled("Text is in", select(columns, picked.text, (name) => pick({ text: name, id: picked.id === name ? "" : picked.id }))),
		labelled("Id is in", select(ids, picked.id, (name) => pick({ id: name }))),
	];

	function pick(change) {
		Object.assign(picked, change);
		draw();
	}

	function draw() {
		fill(first, rowsTable(found.roles ? found.roles(picked.text, picked.id) : found.columns, found.rows));
	}

	function where() {
		const there = corpora.find(({ name }) => name === corpus.value);
		encoder.hidden = Boolean(there) || models.length < 2;
		hint.textContent = there ? `Adds to the ${count(there.documents)} documents of ${there.name}. A row with the id of one takes its place.` : told(corpus);
	}

	function submit(event) {
		event.preventDefault();
		const query = {
			...(found.roles && { text_column: picked.text, ...(picked.id && { id_column: picked.id }) }),
			...(skip.checked && { on_error: "skip" }),
			...(cut.checked && { chunk_tokens: size.value, chunk_overlap: Math.floor(size.value / 5) }),
		};
		send(new Upload({ corpus: corpus.value, file, media: found.media, query, model: encoder.hidden ? null : model.value }));
	}

	draw();
	const form = el(
		"form.stage",
		{ onsubmit: submit },
		div(
			"heading",
			el("h2.clip", { tabindex: "-1" }, file.name),
			el("span.muted", [bytes(file.size), rowsTold(found)].filter(Boolean).join(" · ")),
		),
		div("row", labelled("Read as", formats), choices),
		first,
		found.problems.length > 0 && problemsTold(found.problems),
		div("row", labelled("Corpus", corpus), encoder, names),
		hint,
		el("label.check", skip, "Leave out rows that are wrong, and say which; else one such row stops it all"),
		div("check", el("label.check", cut, "Cut long texts into passages of"), size, "tokens"),
		div("actions", el("button.primary", { type: "submit" }, "Upload"), button("Cancel", cancel)),
	);
	where();
	return form;
}

function rowsTold({ count: rows, exact }) {
	if (exact) return counted(rows, "row");
	return rows ? `about ${count(Number(rows.toPrecision(2)))} rows` : null;
}

function rowsTable(columns, rows) {
	const head = columns.map(({ name, role, type }) =>
		el(
			"th",
			{ scope: "col", class: role },
			el("span.clip", name),
			el("span.role", role, type && role === "metadata" && `, ${type}`),
		),
	);
	const cells = (row) => row.map((cell, i) => el("td", { class: columns[i].role }, div("cell", cell)));
	return table(head, rows.map(cells));
}

function problemsTold(problems) {
	const items = problems.slice(0, 5).map(({ place, error }) => el("li", `${place}: ${error}`));
	const more = problems.length > 5 ? `, here the first 5 of ${count(problems.length)}` : "";
	return div("warn", el("p", `Rows that are wrong, as far as was looked${more}:`), el("ul", items));
}
