// Area for adding documents: the user drops, chooses or pastes a file, reviews it, and sends it.

import { ApiError } from "./api.js";
import { button, div, filePicker, labelled, touched, typing } from "./controls.js";
import { el, fill } from "./dom.js";
import { ACCEPT, Unreadable, preview } from "./preview.js";
import { review } from "./review.js";
import { left, loading } from "./states.js";

let draft = ""; // the text that was written, until it is sent or cancelled, also while the user visits other views

// `known()` returns the corpora by name, and the names of the served encoders, as they are now. `started(upload)` is called for each upload.
export function adding({ known, signal, started }) {
	let aim = null; // the corpus to which the user wants to add
	const [stage, said] = [div("stage"), el("p.wrong.clip", { role: "alert" })];
	const element = el("section.card.adding", { "aria-label": "Add documents" }, stage, said);
	let written; // the file of the draft
	let looking = 0; // number of the latest file; a previous file that is still being read is dropped
	let settled; // content of the stage, which is restored if the next file can't be read

	function settle(...shown) {
		looking++;
		settled = shown;
		fill(said);
		fill(stage, shown);
	}

	function choose() {
		settle(
			div(
				"drop",
				el("p.clip", el("strong", touched ? "Add a file" : "Drop a file here"), aim ? ` to add it to ${aim}` : " to make it searchable"),
				div("actions", filePicker("Choose a file", ACCEPT, look, "primary"), button("Paste text", paste)),
				el("p.muted", "CSV, JSON lines, JSON, plain text, Markdown, HTML, PDF, DOCX, Parquet or Arrow, also packed as .gz. Nothing is sent before you have looked at it."),
			),
		);
	}

	// Ask for another file, for this corpus or for any corpus.
	function again(corpus = null) {
		aim = corpus;
		choose();
		element.scrollIntoView({ block: "nearest" });
		stage.querySelector("input").focus();
	}

	function paste() {
		const text = el("textarea", { rows: 8, value: draft, oninput: () => (draft = text.value), placeholder: "One text per line, CSV with a header, or one JSON object per line" });
		const use = () => text.value.trim() && look((written = new File([text.value], "pasted")));
		settle(labelled("Texts", text), div("actions", button("Look at it", use, { class: "primary" }), button("Cancel", () => ((draft = ""), again()))));
		text.focus();
	}

	async function look(file, given, name = aim) {
		if (!file) return;
		const mine = ++looking;
		fill(stage, loading(`Looking into ${file.name} …`));
		try {
			const [found, there] = await Promise.all([preview(file, given), known()]);
			if (mine !== looking) return;
			settle(review(file, found, { ...there, known, aim: name, readAs: (...other) => look(file, ...other), send, cancel: () => (file === written && (draft = ""), again()) }));
			stage.querySelector("h2").focus({ preventScroll: true });
			element.scrollIntoView({ block: "nearest" });
		} catch (error) {
			if (left(error)) return;
			if (!(error instanceof Unreadable || error instanceof ApiError)) throw error;
			if (mine !== looking) return;
			fill(stage, settled);
			fill(said, error.message);
		}
	}

	function send(upload) {
		if (upload.file === written) draft = "";
		again();
		started(upload);
	}

	document.addEventListener("dragover", (event) => (event.preventDefault(), element.classList.add("over")), { signal });
	document.addEventListener("dragleave", (event) => event.relatedTarget || element.classList.remove("over"), { signal });
	document.addEventListener("drop", dropped, { signal });
	document.addEventListener("paste", pasted, { signal });

	function dropped(event) {
		event.preventDefault();
		element.classList.remove("over");
		const { files } = event.dataTransfer;
		if (files.length > 1) fill(said, "One file at a time, please.");
		else look(files[0]);
	}

	function pasted(event) {
		if (typing(event)) return;
		const [file] = event.clipboardData.files;
		const text = event.clipboardData.getData("text");
		if (file) look(file);
		else if (text.trim()) look(new File([text], "pasted"));
	}

	if (draft) paste();
	else choose();
	return { element, into: again };
}
