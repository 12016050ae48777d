// The API key. The page asks for it when the server requires a key, and keeps it for this tab only.

import { ask } from "./ask.js";
import { labelled } from "./controls.js";
import { el } from "./dom.js";

const PLACE = "isosphere-key";
const SENT = "A key consists of ASCII characters without spaces.";
let asking = null; // the open dialog; all waiting requests share it
let wanted = false; // the server requires keys
let refused = false; // the user cancelled the dialog, and is not asked again before the next action

export const hasKey = () => sessionStorage.getItem(PLACE) !== null;

// True if keys matter on this server.
export const keysMatter = () => hasKey() || wanted;

export const authorization = () => (hasKey() ? { authorization: `Bearer ${sessionStorage.getItem(PLACE)}` } : {});

export const forgetRefusal = () => (refused = false);

// Ask for a key. Return true if there is a new key to try.
export async function askForKey() {
	wanted = true;
	if (refused) return false;
	asking ??= dialog(hasKey() ? "The server does not know this key." : "This server requires an API key.");
	const given = await asking;
	asking = null;
	refused = !given;
	return given;
}

// Ask for another key on the user's request. An empty key deletes the old key.
export const changeKey = () => dialog(hasKey() ? "A key is in use. Give another, or none." : "Requests are sent without a key.");

async function dialog(text) {
	const field = el("input", { name: "key", type: "password", autocomplete: "off", spellcheck: "false", pattern: "\\s*[!-~]*\\s*", title: SENT });
	const kept = el("p.muted", "Kept in this tab until it is closed, and sent to this server only.");
	const given = await ask({ title: "API key", text, fields: [labelled("Key", field), kept], action: "Use this key" });
	const key = given?.get("key").trim();
	if (key) sessionStorage.setItem(PLACE, key);
	else if (given) sessionStorage.removeItem(PLACE);
	document.dispatchEvent(new Event("keychange"));
	return Boolean(given);
}
