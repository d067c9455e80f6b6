// Scripts of the console's pages. Data of records is inserted as text, never as HTML.
"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const RECORDS_MAX = 500;

  const make = (tag, kind = "", text = "") => {
    const element = document.createElement(tag);
    if (kind) element.className = kind;
    if (text) element.textContent = text;
    return element;
  };

  // -- the whole console ---------------------------------------------------------------------------------------

  $("#theme-button").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("theme", theme); } catch { /* no storage: the theme lasts until the page is closed */ }
    document.dispatchEvent(new Event("themed"));
  });

  document.body.addEventListener("htmx:configRequest", (event) => {
    event.detail.headers["X-CSRF-Token"] = $('meta[name="form-secret"]').content;
  });
  // A hidden page does not poll; a refused form shows the reason in its place.
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.requestConfig.verb === "get") event.preventDefault();
  });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.requestConfig.verb === "post" && event.detail.xhr.status === 403) event.detail.shouldSwap = true;
  });

  // -- actions ---------------------------------------------------------------------------------------------------
  // A form first shows the plan; after confirmation the same form is sent again with the seal of the plan.

  const confirmBox = $("#confirm"), CONFIRMED = "X-Confirmed";
  let asking = null, seal = "";
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (!event.detail.elt.hasAttribute("data-acts")) return;
    asking = event.detail.elt;
    if (seal) event.detail.headers[CONFIRMED] = seal;
    seal = "";
  });
  // htmx then focuses the element with autofocus, immediately: with a defaultSettleDelay above 0 it would move the focus again while
  // the user types, and an element would keep attributes of its predecessor, such as the seal of another plan, during the delay.
  $("#confirm-box").addEventListener("htmx:afterSwap", () => { if (!confirmBox.open) confirmBox.showModal(); });
  confirmBox.addEventListener("click", (event) => {
    if (event.target.id === "confirm-yes") {
      seal = event.target.dataset.seal;
      event.target.disabled = true;
      htmx.trigger(asking, "submit");
    } else if (event.target.hasAttribute("data-closes")) confirmBox.close();
  });
  confirmBox.addEventListener("close", () => {
    const acted = $("#acted.done", confirmBox);
    if (acted) location.assign(acted.dataset.then || location.href);
    else asking?.querySelector("button")?.focus();
  });

  // -- polling ---------------------------------------------------------------------------------------------------
  // New values are written into the existing elements, so that focus, selection and scroll position are kept.

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key ?? (node.id || null) : null);
  const morphAttributes = (old, fresh) => {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  };
  const morphChildren = (old, fresh) => {
    const wanted = new Set([...fresh.childNodes].map(keyOf)), kept = new Map();
    for (const child of [...old.childNodes]) {
      const key = keyOf(child);
      if (key !== null && wanted.has(key)) kept.set(key, child);
      else if (key !== null) child.remove();
    }
    let at = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      const key = keyOf(next);
      if (key !== null && kept.has(key)) {
        while (at && at !== kept.get(key) && keyOf(at) === null) { const gone = at; at = at.nextSibling; gone.remove(); }
        if (at === kept.get(key)) at = at.nextSibling; else old.insertBefore(kept.get(key), at);
        morph(kept.get(key), next);
      } else if (key === null && at && keyOf(at) === null && at.nodeName === next.nodeName) {
        const same = at;
        at = at.nextSibling;
        morph(same, next);
      } else old.insertBefore(next, at);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  };
  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    morphAttributes(old, fresh);
    morphChildren(old, fresh);
  };
  htmx.defineExtension("morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap: (style, target, fragment) => {
      if (style !== "morph") return false;
      if (fragment.firstElementChild) morph(target, fragment.firstElementChild); else stale("the node answered with another page");
      return [target];
    },
  });

  const POLL_MS_MAX = 8000;
  const isPoll = (event) => event.detail.elt?.getAttribute("hx-swap") === "morph";
  let heard = new Date();
  const stale = (why) => {
    $("#stale").textContent = `Last update at ${heard.toLocaleTimeString("en-GB")}. The node does not answer: ${why}. Retrying.`;
    $("#stale").hidden = false;
    document.body.classList.add("stale");
  };
  document.body.addEventListener("htmx:configRequest", (event) => { if (isPoll(event)) event.detail.timeout = POLL_MS_MAX; });
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (!isPoll(event)) return;
    const status = event.detail.xhr.status;
    if (!event.detail.successful) return stale(status ? event.detail.xhr.responseText.trim().slice(0, 200) || `status ${status}` : "no connection");
    heard = new Date();
    $("#stale").hidden = true;
    document.body.classList.remove("stale");
  });

  // -- search --------------------------------------------------------------------------------------------------

  const dialog = $("#search"), words = $("#search-words"), found = $("#search-found");
  const links = () => [...found.querySelectorAll("a")];
  const choose = (index) => links().forEach((link, at) => link.classList.toggle("chosen", at === index));
  const chosen = () => links().findIndex((link) => link.classList.contains("chosen"));
  const openSearch = () => {
    if (!dialog.open) dialog.showModal();
    words.value = "";
    words.focus();
    htmx.trigger(words, "opened");
  };
  $("#search-button").addEventListener("click", openSearch);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if ((event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) || (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      openSearch();
    }
  });
  found.addEventListener("htmx:afterSwap", () => choose(0));
  words.addEventListener("keydown", (event) => {
    const count = links().length, at = chosen();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (count) choose((at + (event.key === "ArrowDown" ? 1 : count - 1)) % count);
    } else if (event.key === "Enter" && at >= 0) {
      event.preventDefault();
      location.assign(links()[at].href);
    }
  });

  // -- bytes ---------------------------------------------------------------------------------------------------

  const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const textOf = (bytes) => {
    try { return new TextDecoder("utf-8", { fatal: true }).decode(bytes); } catch { return null; }
  };
  const hexOf = (bytes) => {
    const rows = [];
    for (let at = 0; at < bytes.length; at += 16) {
      const row = [...bytes.slice(at, at + 16)];
      const pairs = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
      const letters = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
      rows.push(`${at.toString(16).padStart(6, "0")}  ${pairs.padEnd(47)}  ${letters}`);
    }
    return rows.join("\n");
  };
  const jsonOf = (text) => {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return null; }
  };
  const preview = (base64) => {
    if (base64 === null) return "∅";
    const bytes = bytesOf(base64), text = textOf(bytes);
    return text === null ? [...bytes.slice(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") : text.slice(0, 300);
  };

  // -- a topic's records ---------------------------------------------------------------------------------------

  const views = (bytes, cut, record) => {
    const box = make("div", "more"), tabs = make("div", "tabs"), pre = make("pre");
    const text = textOf(bytes), json = text === null || cut ? null : jsonOf(text);
    const decoded = record.j === undefined ? null : jsonOf(record.j) ?? record.j;
    const shown = [[`Schema ${record.s}`, decoded], ["JSON", json], ["Text", text], ["Hex", hexOf(bytes)]].filter(([, view]) => view !== null);
    const show = (name) => {
      pre.textContent = shown.find(([each]) => each === name)[1];
      pre.className = name === "Hex" ? "hex" : "";
      tabs.querySelectorAll("button[data-view]").forEach((tab) => tab.setAttribute("aria-pressed", String(tab.dataset.view === name)));
    };
    shown.forEach(([name]) => {
      const tab = make("button", "", name);
      tab.dataset.view = name;
      tab.addEventListener("click", () => show(name));
      tabs.append(tab);
    });
    box.append(tabs, pre);
    show(shown[0][0]);
    return [box, tabs];
  };

  const detailsOf = (topic, record) => {
    const bytes = record.v === null ? new Uint8Array() : bytesOf(record.v);
    const [box, tabs] = views(bytes, bytes.length < record.n, record);
    if (bytes.length < record.n) {
      box.append(make("p", "notice", `The first ${bytes.length} of ${record.n} bytes.`));
    }
    const all = make("a", "", "All bytes");
    all.href = `/api/topics/${encodeURIComponent(topic)}/${record.p}/${record.o}/value`;
    const again = make("button", "secondary", "Resend…");
    again.addEventListener("click", () => fillForm(record, bytes));
    tabs.append(all, ...($("#produce-form") ? [again] : []));
    record.h.forEach(([name, value]) => box.append(make("div", "hint", `${name}: ${preview(value)}`)));
    return box;
  };

  const fillForm = (record, bytes) => {
    const form = $("#produce-form"), text = textOf(bytes), key = record.k === null ? null : bytesOf(record.k);
    const hex = (data) => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    form.elements["null"].checked = record.v === null;
    form.elements["value-is-hex"].checked = text === null;
    form.elements.value.value = text === null ? hex(bytes) : text;
    form.elements["key-is-hex"].checked = key !== null && textOf(key) === null;
    form.elements.key.value = key === null ? "" : textOf(key) ?? hex(key);
    form.elements.headers.value = record.h.map(([name, value]) => `${name}: ${preview(value)}`).join("\n");
    $("#produce").open = true;
    form.elements.value.focus();
    if (bytes.length < record.n) $("#said").replaceChildren(make("p", "fault", "The value is truncated; only its beginning is in the form."));
  };

  const tailPage = (section) => {
    const topic = section.dataset.tail, form = $("#tail-form"), list = $("#records"), state = $("#tail-state"), scanned = $("#tail-scanned");
    let source = null, paused = false, waiting = [], count = 0;

    const asked = () => {
      const fields = form.elements, query = new URLSearchParams({ from: fields.from.value });
      if (fields.from.value === "offset") query.set("at", fields.offset.value || "0");
      if (fields.from.value === "time") query.set("at", String(new Date(fields.time.value || Date.now()).getTime()));
      if (fields.to.value !== "now") query.set("to", fields.to.value);
      if (fields.to.value === "offset") query.set("until", fields["until-offset"].value || "0");
      if (fields.to.value === "time") query.set("until", String(new Date(fields["until-time"].value || Date.now()).getTime()));
      if (fields.partition.value) query.set("partition", fields.partition.value);
      if (fields.contains.value) query.set("contains", fields.contains.value);
      if (fields.filter.value) query.set("filter", fields.filter.value);
      return query;
    };
    const isLive = () => form.elements.live.checked && form.elements.to.value === "now";
    const put = (item) => {
      if (isLive()) list.prepend(item); else list.append(item);
      while (list.children.length > RECORDS_MAX) (isLive() ? list.lastChild : list.firstChild).remove();
    };
    const rowOf = (record) => {
      const item = make("li"), line = make("button", "line");
      const when = record.t === null ? "" : new Date(record.t).toISOString().slice(11, 23);
      line.append(make("span", "where", `${record.p}:${record.o}`), make("span", "when", when));
      if (record.k !== null) line.append(make("span", "key", preview(record.k)));
      line.append(make("span", "text", record.j === undefined ? preview(record.v) : record.j.slice(0, 300)));
      let details = null;
      line.addEventListener("click", () => {
        if (details) { details.remove(); details = null; } else { details = detailsOf(topic, record); item.append(details); }
      });
      item.append(line);
      return item;
    };
    const take = (item) => { if (paused) { waiting.push(item); if (waiting.length > RECORDS_MAX) waiting.shift(); } else put(item); };
    const tell = () => { state.textContent = `${count} records${paused ? `, ${waiting.length} waiting` : source ? ", live" : ""}`; };
    const stop = () => { if (source) source.close(); source = null; };
    const start = () => {
      stop();
      list.replaceChildren();
      waiting = [];
      count = 0;
      const query = asked();
      $("#tail-download").href = `/api/topics/${encodeURIComponent(topic)}/download?${query}`;
      query.set("follow", isLive() ? "1" : "0");
      source = new EventSource(`/api/topics/${encodeURIComponent(topic)}/tail?${query}`);
      source.addEventListener("record", (event) => { count += 1; take(rowOf(JSON.parse(event.data))); tell(); });
      source.addEventListener("skipped", (event) => {
        const { skipped, partition } = JSON.parse(event.data);
        take(make("li", "notice", `${skipped} records of partition ${partition} skipped: they arrived too fast`));
      });
      scanned.textContent = "";
      source.addEventListener("progress", (event) => {
        const told = JSON.parse(event.data);
        scanned.textContent = `scanned ${told.scanned}${told.of ? ` of about ${told.of}` : ""}`;
      });
      source.addEventListener("fault", (event) => { take(make("li", "fault", JSON.parse(event.data).text)); });
      source.addEventListener("end", () => { stop(); tell(); });
      let broken = false;
      source.onerror = () => { broken = true; state.textContent = "disconnected; retrying"; };
      source.onopen = () => { if (broken) { broken = false; list.replaceChildren(); waiting = []; count = 0; tell(); } };
      tell();
    };
    const command = () => {
      const fields = form.elements, server = section.dataset.server.replace(/\/\/(0\.0\.0\.0|\[::\])/, `//${location.hostname}`);
      const words = ["braid", isLive() ? "tail" : "consume", topic];
      const offsets = { last: "-50", earliest: "beginning", latest: "end", offset: fields.offset.value || "0" };
      if (fields.from.value === "time") words.push("--from", new Date(fields.time.value || Date.now()).toISOString());
      else words.push(`--offset=${offsets[fields.from.value]}`);
      if (fields.to.value === "time") words.push("--until", new Date(fields["until-time"].value || Date.now()).toISOString());
      if (fields.partition.value) words.push("--partition", fields.partition.value);
      if (server) words.push("--server", server);
      return words.map((word) => (/^[\w.:/@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
    };

    const saved = () => { try { return JSON.parse(localStorage.getItem("filters")) || []; } catch { return []; } };
    const keep = (filters) => {
      try { localStorage.setItem("filters", JSON.stringify(filters.slice(-50))); } catch { /* no storage */ }
      showSaved();
    };
    const showSaved = () => $("#saved-filters").replaceChildren(...saved().map((each) => { const option = make("option"); option.value = each; return option; }));
    const filter = form.elements.filter;
    $("#filter-save").addEventListener("click", () => { if (filter.value) keep([...saved().filter((each) => each !== filter.value), filter.value]); });
    $("#filter-drop").addEventListener("click", () => { keep(saved().filter((each) => each !== filter.value)); filter.value = ""; start(); });
    showSaved();
    form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
    form.addEventListener("change", () => {
      $("#at-offset").classList.toggle("hidden", form.elements.from.value !== "offset");
      $("#at-time").classList.toggle("hidden", form.elements.from.value !== "time");
      $("#until-offset").classList.toggle("hidden", form.elements.to.value !== "offset");
      $("#until-time").classList.toggle("hidden", form.elements.to.value !== "time");
      form.elements.live.disabled = form.elements.to.value !== "now";
      start();
    });
    $("#tail-pause").addEventListener("click", (event) => {
      paused = !paused;
      event.target.textContent = paused ? "Resume" : "Pause";
      if (!paused) { waiting.forEach(put); waiting = []; }
      tell();
    });
    $("#tail-clear").addEventListener("click", () => list.replaceChildren());
    $("#tail-copy").addEventListener("click", async (event) => {
      const text = command();
      section.dataset.command = text;
      try { await navigator.clipboard.writeText(text); state.textContent = `copied: ${text}`; } catch { state.textContent = text; }
      event.target.blur();
    });
    start();
  };

  // -- plots ---------------------------------------------------------------------------------------------------

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 60) return `${value.toFixed(1)} s`;
    return value < 3600 ? `${Math.floor(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
  };
  const PLOTS = {
    rates: {
      url: () => "/api/rates",
      event: "rates",
      lines: [["in", "--one", (point) => point.appended], ["out", "--two", (point) => point.fetched]],
      axis: "n",
    },
    lag: {
      url: (box) => `/api/groups/${encodeURIComponent(box.dataset.group)}/lag`,
      event: "lag",
      lines: [["lag", "--two", (point) => point.lag]],
      axis: "n",
      told: (point) => {
        $("#lag-records").textContent = point.lag.toLocaleString("en").replaceAll(",", "\u202f");
        $("#lag-seconds").textContent = seconds(point.seconds);
      },
    },
  };
  PLOTS.pipeline = {
    url: (box) => `/api/spark/pipelines/${encodeURIComponent(box.dataset.pipeline)}/figures`,
    event: "figures",
    lines: [["rows / s", "--one", (point) => point.rows], ["lag", "--two", (point) => point.lag]],
    axis: "n",
  };
  const HISTORY_SECONDS = 3600;
  const CLOCK_WIDTH = 72;
  const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
  const plotPage = (box) => {
    const kind = PLOTS[box.dataset.plot], data = [[], ...kind.lines.map(() => [])];
    let plot = null;
    const draw = () => {
      if (plot) plot.destroy();
      const axis = { stroke: css("--pico-muted-color"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
      plot = new uPlot({
        width: box.clientWidth,
        height: 220,
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 10)] } },
        axes: [{ ...axis, space: CLOCK_WIDTH, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 64 }],
        series: [{ value: (_, at) => (at === null ? "" : clock(at)) }, ...kind.lines.map(([label, color]) => ({ label, stroke: css(color), width: 2, fill: `${css(color)}22`, points: { show: false } }))],
      }, data, box);
    };
    draw();
    new ResizeObserver(() => { if (plot && box.clientWidth) plot.setSize({ width: box.clientWidth, height: 220 }); }).observe(box);
    document.addEventListener("themed", draw);
    let live = 0;
    const put = (point) => {
      data[0].push(point.t);
      kind.lines.forEach(([, , value], at) => data[at + 1].push(value(point)));
      while (data[0].length && data[0][0] < point.t - HISTORY_SECONDS) data.forEach((column) => column.shift());
    };
    const source = new EventSource(kind.url(box));
    source.addEventListener("history", (event) => {
      const points = JSON.parse(event.data);
      data.forEach((column) => { column.length = 0; });
      live = 0;
      points.forEach(put);
      box.dataset.history = String(points.length);
      plot.setData(data);
    });
    source.addEventListener(kind.event, (event) => {
      const point = JSON.parse(event.data);
      put(point);
      live += 1;
      box.dataset.points = String(live);
      box.dataset.last = String(kind.lines[0][2](point));
      if (kind.told) kind.told(point);
      plot.setData(data);
    });
  };

  // -- the wire ------------------------------------------------------------------------------------------------

  const wirePage = (section) => {
    const list = $("#wire"), state = $("#wire-state"), contains = $("#wire-contains"), view = $("#wire-view");
    let paused = false, hex = false, count = 0;
    const shows = (item) => !contains.value || item.dataset.all.includes(contains.value.toLowerCase());
    const refresh = () => [...list.children].forEach((item) => item.classList.toggle("hidden", !shows(item)));
    const bodyOf = (item) => (hex ? item.wire.hex : item.wire.fields);
    const itemOf = (wire) => {
      const item = make("li", wire.side || "notice");
      item.wire = wire;
      item.dataset.all = `${wire.name || ""} ${wire.text} ${wire.side || ""}`.toLowerCase();
      if (wire.kind !== "message") { item.textContent = wire.text; return item; }
      const line = make("button", "line"), pre = make("pre", "hidden");
      line.append(make("span", "when", wire.time.slice(11, 23)), make("span", "where", wire.side === "client" ? "→ request" : "← response"), make("span", "name", wire.name), make("span", "text", wire.text));
      line.addEventListener("click", () => { pre.classList.toggle("hidden"); pre.textContent = bodyOf(item); pre.classList.toggle("hex", hex); });
      item.append(line, pre);
      if (wire.fault) item.append(make("div", "fault", wire.fault));
      return item;
    };
    view.addEventListener("click", () => {
      hex = !hex;
      view.textContent = hex ? "Show fields" : "Show hex";
      list.querySelectorAll("pre").forEach((pre) => { pre.textContent = bodyOf(pre.parentElement); pre.classList.toggle("hex", hex); });
    });
    $("#wire-pause").addEventListener("click", (event) => { paused = !paused; event.target.textContent = paused ? "Resume" : "Pause"; });
    $("#wire-clear").addEventListener("click", () => list.replaceChildren());
    contains.addEventListener("input", refresh);
    state.textContent = "waiting for a message";
    const source = new EventSource(`/api/connections/${section.dataset.wire}/wire`);
    const put = (wire) => {
      if (paused) return;
      const item = itemOf(wire);
      item.classList.toggle("hidden", !shows(item));
      list.prepend(item);
      while (list.children.length > RECORDS_MAX) list.lastChild.remove();
    };
    source.addEventListener("wire", (event) => { count += 1; put(JSON.parse(event.data)); state.textContent = `${count} messages`; });
    source.addEventListener("fault", (event) => put({ kind: "fault", text: JSON.parse(event.data).text }));
    source.addEventListener("end", () => { source.close(); state.textContent += ", ended"; });
    source.onerror = () => { source.close(); state.textContent = "connection closed"; };
  };

  // -- tables filtered in the browser ---------------------------------------------------------------------------

  const filterPage = (input) => {
    const rows = [...document.querySelectorAll(`${input.dataset.filters} tbody tr`)];
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      rows.forEach((row) => row.classList.toggle("hidden", !row.textContent.toLowerCase().includes(wanted)));
    });
  };

  document.querySelectorAll("[data-tail]").forEach(tailPage);
  document.querySelectorAll("[data-plot]").forEach(plotPage);
  document.querySelectorAll("[data-wire]").forEach(wirePage);
  document.querySelectorAll("[data-filters]").forEach(filterPage);
})();
