// The API key: asked for when the server wants one, kept for this tab alone.

import { ask } from "./ask.js";
import { labelled } from "./controls.js";
import { el } from "./dom.js";

const PLACE = "isosphere-key";
let asking = null; // one dialog, however many requests wait for it
let wanted = false; // the server has keys
let refused = false; // the person did not give one: they are not asked again until they do something new

export const hasKey = () => sessionStorage.getItem(PLACE) !== null;

// Whether there is anything to say about keys.
export const keysMatter = () => hasKey() || wanted;

export const authorization = () => (hasKey() ? { authorization: `Bearer ${sessionStorage.getItem(PLACE)}` } : {});

export const forgetRefusal = () => (refused = false);

// Whether there is a key to try now.
export async function askForKey() {
	wanted = true;
	if (refused) return false;
	asking ??= dialog(hasKey() ? "The server does not know this key." : "This server answers only who has a key.");
	const given = await asking;
	asking = null;
	refused = !given;
	return given;
}

// The same, because the person wants another one. An empty one forgets the key.
export const changeKey = () => dialog(hasKey() ? "A key is in use. Give another, or none." : "Requests are sent without a key.");

async function dialog(text) {
	const field = el("input", { name: "key", type: "password", autocomplete: "off", spellcheck: "false" });
	const kept = el("p.muted", "Kept in this tab until it is closed, and sent to this server only.");
	const given = await ask({ title: "API key", text, fields: [labelled("Key", field), kept], action: "Use this key" });
	const key = given?.get("key").trim();
	if (key) sessionStorage.setItem(PLACE, key);
	else if (given) sessionStorage.removeItem(PLACE);
	document.dispatchEvent(new Event("keychange"));
	return Boolean(given);
}
