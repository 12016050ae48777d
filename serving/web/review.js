// The form in which the user reviews a file before it is sent.

import { button, div, labelled, scrolled, select, status, table } from "./controls.js";
import { el, fill } from "./dom.js";
import { bytes, count, counted } from "./format.js";
import { like, nameField, told } from "./names.js";
import { FORMATS, SUFFIX } from "./preview.js";
import { left } from "./states.js";
import { Upload } from "./uploads.js";

const TYPES = { string: "text", number: "number", boolean: "true or false", date: "date" };

// `found`: what preview() tells of the file; `corpora` are there, by name, `models` the names of the encoders served, and known() tells both
// anew; `aim`: the corpus that it is meant for, if any. readAs(given, corpus) looks at the file anew, send(upload) sends it.
export function review(file, found, { corpora, models, known, aim, readAs, send, cancel }) {
	const picked = { text: found.text, id: found.id, types: new Map() };
	const first = scrolled("First rows");
	const [hint, wrong, about] = [status(), div("problems"), el("span.muted")];
	const names = el("datalist", { id: "corpus-names" }, [...corpora.keys()].map((value) => el("option", { value })));
	const corpus = nameField(aim ?? like(file.name.replace(SUFFIX, "")), { list: "corpus-names", oninput: where });
	const model = select(models, models[0]);
	const encoder = labelled("Encoder", model);
	const skip = el("input", { type: "checkbox", checked: found.as(picked).problems.some(({ place }) => place !== file.name) });
	const cut = el("input", { type: "checkbox", onchange: () => (size.disabled = !cut.checked) });
	const size = el("input", { type: "number", min: 16, max: 100000, value: 200, required: true, disabled: true, "aria-label": "Tokens of a passage" });
	const asked = { text: el("input", { name: "text", value: "text", required: true }), id: el("input", { name: "id", value: "id", placeholder: "(generated)" }) };
	const split = select([["section", found.format === "PDF" ? "each page" : "each section"], ["file", "the whole file"]], "section");
	const formats = select(found.unread ? [found.format] : Object.entries(FORMATS), found.format, (other) => {
		formats.value = found.format; // until the file is read in another format, which may fail
		readAs({ format: other, charset: found.asked }, corpus.value);
	});
	const charsets = select(found.charsets ?? [], found.charset, (other) => readAs({ format: found.format, charset: other }, corpus.value));
	const choices = div("row");
	const form = el(
		"form.stage",
		{ onsubmit: submit },
		div("heading", el("h2.clip", { tabindex: "-1" }, file.name), about),
		div("row", labelled("Read as", formats), !found.unread && labelled("Charset", charsets), choices),
		first,
		wrong,
		div("row", labelled("Corpus", corpus), encoder, names),
		hint,
		el("label.check", skip, "Skip invalid rows, and list them. Otherwise one invalid row stops the upload"),
		div("check", el("label.check", cut, "Cut long texts into passages of"), size, "tokens"),
		div("actions", el("button.primary", { type: "submit" }, "Upload"), button("Cancel", cancel)),
	);
	draw();
	where();
	return form;

	// The select with this name keeps the focus.
	function pick(name, change) {
		Object.assign(picked, change);
		const made = found.own === picked.text ? "" : found.own; // the server's default, unless the user chooses another column
		if (!picked.id || picked.id === picked.text) picked.id = made;
		draw();
		form.elements.namedItem(name)?.focus();
	}

	// For a file that only the server can read, the user gives the columns, or chooses the unit of a document.
	function unread() {
		const table = found.unread === "table";
		fill(about, bytes(file.size));
		fill(first, el("p.muted", `The server reads ${found.format}. It reports errors in the file after the upload.`));
		fill(choices, table ? [labelled("Text is in", asked.text), labelled("Id is in", asked.id)] : labelled("A document is", split));
	}

	function draw() {
		if (found.unread) return unread();
		const { columns, rows, count: many, problems } = found.as(picked);
		fill(about, [bytes(file.size), rowsTold(many, found.exact)].filter(Boolean).join(" · "));
		fill(first, rowsTable(columns, rows, typeOf));
		fill(wrong, problems.length > 0 && problemsTold(problems));
		const ids = found.fields?.filter((name) => name !== picked.text);
		if (!found.own || found.own === picked.text) ids?.unshift(["", "(generated)"]);
		fill(
			choices,
			found.fields && [
				labelled("Text is in", select(found.fields, picked.text, (text) => pick("text", { text }), { name: "text" })),
				labelled("Id is in", select(ids, picked.id, (id) => pick("id", { id }), { name: "id" })),
			],
		);
	}

	// Types of metadata columns in CSV come from the header, or else from the values. The user can change them.
	function typeOf({ name, given, guess }) {
		const said = given ? [] : [["auto", `${TYPES[guess]} (guessed)`]];
		const chosen = (type) => {
			if (type === "auto") picked.types.delete(name);
			else picked.types.set(name, type);
			pick(`type ${name}`, {});
		};
		const options = [...said, ...Object.entries(TYPES)];
		return select(options, picked.types.get(name) ?? given ?? "auto", chosen, { name: `type ${name}`, "aria-label": `Type of ${name}` });
	}

	// The type of an `auto` column depends on all rows of the file, including rows that the preview did not read.
	function typesAsked() {
		const types = found.as(picked).columns.filter(({ role }) => role === "metadata").map(({ name }) => [name, picked.types.get(name) ?? "auto"]);
		return picked.types.size ? JSON.stringify(Object.fromEntries(types)) : "auto";
	}

	function where() {
		const there = corpora.get(corpus.value);
		hint.className = "muted";
		encoder.hidden = Boolean(there) || models.length < 2;
		hint.textContent = there ? `Adds to the ${counted(there.documents, "document")} of ${there.name}. A row with the id of one takes its place.` : told(corpus);
	}

	// The file is sent only if its corpus is the one that the hint named.
	async function submit(event) {
		event.preventDefault();
		const before = corpora;
		try {
			({ corpora } = await known());
		} catch (error) {
			if (!left(error)) fill(hint, error.message);
			return;
		}
		if (!form.isConnected) return; // the user pressed twice
		if (corpora.get(corpus.value)?.name !== before.get(corpus.value)?.name) {
			where();
			hint.className = "warn";
			return;
		}
		const columns = found.unread === "table" ? { text: asked.text.value, id: asked.id.value } : found.fields ? picked : {};
		const query = {
			...(columns.text && columns.text !== "text" && { text_column: columns.text }),
			...(columns.id && columns.id !== "id" && { id_column: columns.id }),
			...(found.unread === "sections" && split.value !== "section" && { split: split.value }),
			...(found.format === "csv" && { column_types: typesAsked() }),
			...(skip.checked && { on_error: "skip" }),
			...(cut.checked && { chunk_tokens: size.value, chunk_overlap: Math.floor(size.value / 5) }),
		};
		send(new Upload({ corpus: corpus.value, file, media: found.media, form: found.form, query, model: encoder.hidden ? null : model.value }));
	}
}

function rowsTold(rows, exact) {
	if (exact) return counted(rows, "row");
	return rows ? `about ${count(Number(rows.toPrecision(2)))} rows` : null;
}

function rowsTable(columns, rows, typeOf) {
	const head = columns.map((column) =>
		el("th", { scope: "col", class: column.role }, el("span.clip", column.name), el("span.role", column.role), column.role === "metadata" && column.guess && typeOf(column)),
	);
	const cells = (row) => row.map((cell, i) => el("td", { class: columns[i].role }, div("cell", cell)));
	return table(head, rows.map(cells));
}

function problemsTold(problems) {
	const items = problems.slice(0, 5).map(({ place, error }) => el("li", `${place}: ${error}`));
	const more = problems.length > 5 ? `, here the first 5 of ${count(problems.length)}` : "";
	return div("warn", el("p", `Invalid rows in the preview${more}:`), el("ul", items));
}
