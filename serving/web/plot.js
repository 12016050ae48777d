// Points on a canvas with pan, zoom, hover and lasso. They are drawn again in each frame with a movement.

import { el } from "./dom.js";

const MARGIN = 24; // pixels around the points at first
const NEAR = 9; // pixels within which the pointer means a point
const [LEAST, MOST] = [0.5, 200]; // zoom, as a multiple of what shows all
const STEP = 1.3; // zoom factor of a key or button
const PAN = 60; // pixels that a key moves
const AROUND = 200; // pixels painted beyond each side, so that short moves need no painting
const FEW = 5000; // points that are painted within a frame; of more, zooming enlarges what is painted, until it pauses
const PAUSE_MS = 120;

export class Plot {
	// told: { hover(point or null, x, y), chosen(indices), moved() }, x and y in pixels of the canvas. Points have x, y and group.
	constructor(canvas, told) {
		this.canvas = canvas;
		this.context = canvas.getContext("2d");
		this.told = told;
		this.points = [];
		this.chosen = null; // a set of indices
		this.lasso = null; // corners, in pixels
		this.lassoing = false; // true if dragging draws the lasso
		this.pointers = new Map();
		new ResizeObserver(() => this.resize()).observe(canvas);
		for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel", "pointerleave", "wheel", "dblclick", "keydown"]) {
			canvas.addEventListener(name, (event) => this[name](event), { passive: false });
		}
	}

	// colours: of each group, as CSS; ink: of what is drawn around points.
	show(points, colours, ink) {
		const sizes = colours.map(() => 0);
		for (const { group } of points) sizes[group]++;
		this.order = [...points.keys()].sort((one, other) => sizes[points[other].group] - sizes[points[one].group]); // rare groups are on top
		Object.assign(this, { points, colours, ink, layer: null, hovered: null });
		this.draw();
	}

	choose(chosen) {
		Object.assign(this, { chosen, layer: null });
		this.draw();
	}

	resize() {
		const { clientWidth: width, clientHeight: height } = this.canvas;
		if (!width || !height) return;
		const before = this.width;
		Object.assign(this, { width, height, ratio: devicePixelRatio });
		[this.canvas.width, this.canvas.height] = [width * this.ratio, height * this.ratio];
		this.fit(...(before ? [this.zoom, this.middle] : []));
		if (this.colours) this.paint(); // immediately, because resizing clears the canvas
	}

	// Without arguments, show all points.
	fit(zoom = 1, middle = null) {
		let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
		for (const { x, y } of this.points) {
			[left, right] = [Math.min(left, x), Math.max(right, x)];
			[bottom, top] = [Math.min(bottom, y), Math.max(top, y)];
		}
		const all = Math.min((this.width - 2 * MARGIN) / (right - left), (this.height - 2 * MARGIN) / (top - bottom));
		this.unit = all > 0 && all < Infinity ? all : this.height; // pixels of 1 when all is shown
		Object.assign(this, { zoom, layer: null });
		this.middle = middle ?? { x: (left + right) / 2 || 0, y: (bottom + top) / 2 || 0 };
		this.draw();
	}

	get scale() {
		return this.unit * this.zoom;
	}

	place({ x, y }) {
		return [this.width / 2 + (x - this.middle.x) * this.scale, this.height / 2 - (y - this.middle.y) * this.scale];
	}

	pan(right, down) {
		this.middle = { x: this.middle.x - right / this.scale, y: this.middle.y + down / this.scale };
		this.draw();
	}

	// Zoom, and keep the point at these pixels in place.
	magnify(by, x = this.width / 2, y = this.height / 2) {
		const zoom = Math.min(MOST, Math.max(LEAST, this.zoom * by));
		const kept = 1 / this.scale - 1 / (this.unit * zoom);
		this.middle = { x: this.middle.x + (x - this.width / 2) * kept, y: this.middle.y - (y - this.height / 2) * kept };
		Object.assign(this, { zoom });
		if (this.points.length <= FEW) this.layer = null;
		else this.refine();
		this.draw();
	}

	// Paint again when the zooming pauses.
	refine() {
		clearTimeout(this.pause);
		this.pause = setTimeout(() => {
			this.layer = null;
			this.draw();
		}, PAUSE_MS);
	}

	inView() {
		return this.where(([x, y]) => x >= 0 && y >= 0 && x <= this.width && y <= this.height);
	}

	where(holds) {
		const found = new Set();
		this.points.forEach((point, i) => holds(this.place(point)) && found.add(i));
		return found;
	}

	draw() {
		this.frame ??= requestAnimationFrame(() => {
			this.frame = null;
			this.told.moved();
			if (this.width && this.colours) this.paint();
		});
	}

	paint() {
		const { context, ratio, width, height } = this;
		const moved = () => [(this.layer.middle.x - this.middle.x) * this.scale, (this.middle.y - this.layer.middle.y) * this.scale];
		const enlarged = () => this.scale / this.layer.scale;
		if (!this.layer || (enlarged() === 1 && moved().some((pixels) => Math.abs(pixels) > AROUND))) this.layer = this.painted();
		const [[right, down], times] = [moved(), enlarged()];
		const [across, along] = [times * (width + 2 * AROUND), times * (height + 2 * AROUND)];
		context.setTransform(ratio, 0, 0, ratio, 0, 0);
		context.clearRect(0, 0, width, height);
		context.drawImage(this.layer.canvas, right + (width - across) / 2, down + (height - along) / 2, across, along);
		context.strokeStyle = this.ink;
		context.lineWidth = 1.5;
		context.beginPath();
		if (this.lasso) this.lasso.forEach((corner) => context.lineTo(...corner));
		else if (this.hovered !== null) context.arc(...this.place(this.points[this.hovered]), this.layer.radius + 2, 0, 2 * Math.PI);
		context.closePath();
		context.stroke();
	}

	// The points are painted on a separate canvas, which is larger than the visible part. Panning only moves this canvas.
	painted() {
		const { ratio, points, chosen, middle, scale } = this;
		const [width, height] = [this.width + 2 * AROUND, this.height + 2 * AROUND];
		const smallest = 2.4 * Math.min(1, (FEW / points.length) ** 0.3);
		const radius = Math.min(6, smallest + 0.6 * Math.log2(Math.max(1, this.zoom)));
		const sprites = this.colours.map((colour) => sprite(colour, radius, ratio));
		const side = sprites[0].width / ratio;
		const canvas = el("canvas", { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio) });
		const context = canvas.getContext("2d");
		context.scale(canvas.width / width, canvas.height / height);
		for (const above of chosen ? [false, true] : [true]) {
			context.globalAlpha = above ? 0.85 : 0.15;
			for (const i of this.order) {
				if (chosen && chosen.has(i) !== above) continue;
				const x = width / 2 + (points[i].x - middle.x) * scale - side / 2;
				const y = height / 2 - (points[i].y - middle.y) * scale - side / 2;
				if (x > -side && y > -side && x < width && y < height) context.drawImage(sprites[points[i].group], x, y, side, side);
			}
		}
		return { canvas, middle, scale, radius };
	}

	hover(x, y) {
		const { points, middle, scale } = this;
		const [right, up] = [middle.x + (x - this.width / 2) / scale, middle.y - (y - this.height / 2) / scale];
		let [found, least] = [null, (NEAR / scale) ** 2];
		for (let i = 0; i < points.length; i++) {
			const far = (points[i].x - right) ** 2 + (points[i].y - up) ** 2;
			if (far < least) [found, least] = [i, far];
		}
		if (found !== this.hovered) {
			this.hovered = found;
			this.draw();
		}
		this.told.hover(found === null ? null : this.points[found], x, y);
	}

	pointerdown(event) {
		if (event.button !== 0) return;
		this.canvas.setPointerCapture(event.pointerId);
		this.pointers.set(event.pointerId, event);
		const lasso = (this.lassoing || event.shiftKey) && this.pointers.size === 1;
		this.lasso = lasso ? [[event.offsetX, event.offsetY]] : null;
	}

	pointermove(event) {
		const { pointerId, offsetX: x, offsetY: y } = event;
		const before = this.pointers.get(pointerId);
		if (!before) return this.hover(x, y);
		this.pointers.set(pointerId, event);
		const other = [...this.pointers.values()].find((one) => one.pointerId !== pointerId);
		const apart = (one) => Math.hypot(one.offsetX - other.offsetX, one.offsetY - other.offsetY);
		if (this.lasso) {
			this.lasso.push([x, y]);
			this.draw();
		} else if (other) this.magnify(apart(event) / Math.max(1, apart(before)), (x + other.offsetX) / 2, (y + other.offsetY) / 2);
		else this.pan(x - before.offsetX, y - before.offsetY);
	}

	pointerup(event) {
		this.pointers.delete(event.pointerId);
		const { lasso } = this;
		this.lasso = null;
		this.draw();
		if (lasso?.length > 2) this.told.chosen(this.where((place) => within(place, lasso)));
	}

	pointercancel(event) {
		this.lasso = null;
		this.pointerup(event);
	}

	pointerleave() {
		this.hovered = null;
		this.draw();
		this.told.hover(null);
	}

	wheel(event) {
		event.preventDefault();
		this.magnify(1.0015 ** -(event.deltaY * (event.deltaMode ? 30 : 1)), event.offsetX, event.offsetY);
	}

	dblclick() {
		this.fit();
	}

	keydown(event) {
		const act = {
			ArrowLeft: () => this.pan(PAN, 0),
			ArrowRight: () => this.pan(-PAN, 0),
			ArrowUp: () => this.pan(0, PAN),
			ArrowDown: () => this.pan(0, -PAN),
			"+": () => this.magnify(STEP),
			"=": () => this.magnify(STEP),
			"-": () => this.magnify(1 / STEP),
			0: () => this.fit(),
			Enter: () => this.told.chosen(this.inView()),
			Escape: () => this.told.chosen(new Set()),
		}[event.key];
		if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
		event.preventDefault();
		act();
	}
}

// An image of a disc. Drawing it thousands of times is faster than drawing arcs.
function sprite(colour, radius, ratio) {
	const side = Math.ceil(2 * (radius + 1) * ratio);
	const canvas = el("canvas", { width: side, height: side });
	const context = canvas.getContext("2d");
	context.fillStyle = colour;
	context.arc(side / 2, side / 2, radius * ratio, 0, 2 * Math.PI);
	context.fill();
	return canvas;
}

// Return whether a place is inside a polygon: a ray from the place then crosses the sides an odd number of times.
function within([x, y], corners) {
	return corners.reduce((inside, [right, bottom], i) => {
		const [left, top] = corners.at(i - 1);
		const crossed = bottom > y !== top > y && x < ((left - right) * (y - bottom)) / (top - bottom) + right;
		return inside !== crossed;
	}, false);
}
