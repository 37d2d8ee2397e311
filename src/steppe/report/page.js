"use strict";
(() => {
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  // Light and dark: the system's choice until the button is used.
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.setAttribute("aria-label", "Switch between light and dark");
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();

  // A mark's title has three lines: value, series, place. Browsers would show it themselves.
  const read = (mark) => {
    const title = mark.querySelector("title");
    const [value, name, where] = title.textContent.split("\n");
    title.remove();
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", `${name}, ${where}: ${value}`);
    const box = mark.firstElementChild;
    const at = (key) => Number(box.getAttribute(key));
    const bar = box.tagName === "rect";
    return {
      mark, value, name, where,
      tone: mark.parentElement.getAttribute("class"),
      x: bar ? at("x") + at("width") / 2 : at("cx"),
      y: bar ? at("y") : at("cy"),
    };
  };

  const row = (point, near) => {
    const line = document.createElement("div");
    const swatch = document.createElement("i");
    const value = document.createElement("em");
    line.className = near ? `${point.tone} near` : point.tone;
    swatch.className = "swatch";
    value.textContent = point.value;
    line.append(swatch, point.name, value);
    return line;
  };

  const hide = () => {
    tip.hidden = true;
    document.querySelectorAll(".mark.near").forEach((mark) => mark.classList.remove("near"));
  };

  const show = (points, point) => {
    hide();
    const column = points.filter((other) => other.where === point.where);
    const where = document.createElement("b");
    where.textContent = point.where;
    tip.replaceChildren(where, ...column.map((other) => row(other, other === point)));
    column.forEach((other) => other.mark.classList.add("near"));
    tip.hidden = false;
    place(point.mark);
  };

  const place = (mark) => {
    const box = mark.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const middle = box.left + box.width / 2;
    const right = middle + 16 + own.width < innerWidth;
    const left = right ? middle + 16 : Math.max(8, middle - 16 - own.width);
    const top = Math.min(Math.max(8, box.top - own.height / 2), innerHeight - own.height - 8);
    tip.style.transform = `translate(${left}px, ${top}px)`;
  };

  document.querySelectorAll(".plot svg").forEach((svg) => {
    const points = Array.from(svg.querySelectorAll(".mark"), read);
    if (!points.length) return;
    points[0].mark.tabIndex = 0;

    svg.addEventListener("pointermove", (event) => {
      const pointer = new DOMPoint(event.clientX, event.clientY);
      const { x, y } = pointer.matrixTransform(svg.getScreenCTM().inverse());
      // Across counts more than up: a reader looks for a place first, for a series second.
      const distance = (point) => Math.hypot(4 * (point.x - x), point.y - y);
      show(points, points.reduce((a, b) => (distance(b) < distance(a) ? b : a)));
    });
    svg.addEventListener("pointerleave", hide);

    const focus = (point) => {
      points.forEach((other) => { other.mark.tabIndex = other === point ? 0 : -1; });
      point.mark.focus();
    };
    svg.addEventListener("focusin", (event) => {
      const point = points.find((other) => other.mark === event.target);
      if (point) show(points, point);
    });
    svg.addEventListener("focusout", hide);
    svg.addEventListener("keydown", (event) => {
      const point = points.find((other) => other.mark === event.target);
      if (!point) return;
      const series = points.filter((other) => other.name === point.name);
      const column = points.filter((other) => other.where === point.where);
      const step = (list, by) => list[list.indexOf(point) + by];
      const next = {
        ArrowLeft: () => step(series, -1),
        ArrowRight: () => step(series, 1),
        ArrowUp: () => step(column, -1),
        ArrowDown: () => step(column, 1),
        Home: () => series[0],
        End: () => series[series.length - 1],
      }[event.key];
      if (event.key === "Escape") hide();
      if (!next) return;
      event.preventDefault();
      const found = next();
      if (found) focus(found);
    });
  });
  // A mark that has the focus takes its tooltip along; under the pointer the page has moved on.
  addEventListener("scroll", () => {
    const focused = document.activeElement;
    if (focused.matches(".mark") && !tip.hidden) place(focused);
    else hide();
  }, { passive: true });
})();
