// Draws /openapi.json as a page: routes by tag, fields with their stories, an example, and a form to try what only reads.
"use strict";

// The path in front of every route: this page is at <prefix>/docs.
const prefix = location.pathname.replace(/\/docs$/, "");

const make = (tag, options = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children.filter((child) => child !== null));
  return element;
};

// Descriptions carry `code` in backticks; the rest is plain text.
const prose = (text, tag = "p") =>
  make(tag, {}, ...(text || "").split(/`+/).map((part, at) => (at % 2 ? make("code", { textContent: part }) : part)));

const resolve = (api, schema) => {
  if (!schema || !schema.$ref) return schema || {};
  return { name: schema.$ref.split("/").pop(), ...api.components.schemas[schema.$ref.split("/").pop()] };
};

const typeName = (api, schema) => {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const any = schema.anyOf || schema.oneOf;
  if (any) return any.map((option) => typeName(api, option)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return "list of " + typeName(api, schema.items || {});
  let name = schema.type || "any";
  if (schema.minimum !== undefined) name += ` ≥ ${schema.minimum}`;
  if (schema.exclusiveMinimum !== undefined) name += ` > ${schema.exclusiveMinimum}`;
  if (schema.maximum !== undefined) name += ` ≤ ${schema.maximum}`;
  if (schema.default !== undefined && schema.default !== null) name += `, default ${JSON.stringify(schema.default)}`;
  return name;
};

const fieldTable = (api, schema) => {
  const rows = Object.entries(schema.properties || {}).map(([name, field]) =>
    make(
      "tr",
      {},
      make("td", { className: (schema.required || []).includes(name) ? "need" : "", textContent: name }),
      make("td", { textContent: typeName(api, field) }),
      prose(field.description, "td"),
    ),
  );
  return rows.length ? make("table", {}, make("tbody", {}, ...rows)) : null;
};

const bodyOf = (api, title, content) => {
  const parts = [];
  for (const [media, { schema }] of Object.entries(content || {})) {
    const options = schema && (schema.anyOf || schema.oneOf) ? schema.anyOf || schema.oneOf : [schema];
    for (const option of options) {
      const found = resolve(api, option && option.type === "array" ? option.items : option);
      parts.push(make("h3", { textContent: `${title}: ${typeName(api, option) || media} (${media})` }));
      if (found.description) parts.push(prose(found.description));
      parts.push(fieldTable(api, found));
      if (found.examples) {
        parts.push(make("h3", { textContent: "Example" }));
        parts.push(make("pre", { textContent: JSON.stringify(found.examples[0], null, 2) }));
      }
    }
  }
  return parts;
};

// The key is kept by this page alone, in memory: it is gone when the page is left.
let key = "";

const authorizeForm = () => {
  const input = make("input", { type: "password", name: "key", autocomplete: "off", spellcheck: false });
  const state = make("span", { className: "what", textContent: "No key: only what needs none can be tried." });
  const form = make(
    "form",
    { id: "authorize" },
    make("label", {}, "API key, or a token of the issuer", input),
    make("button", { textContent: "Authorize" }),
    state,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key = input.value.trim();
    input.value = "";
    state.textContent = key ? "The key is sent with each request of this page." : "No key is sent.";
  });
  return form;
};

const tryForm = (method, path, parameters) => {
  if (method !== "GET" || path.endsWith("/events") || path.includes("{digest}") || path.endsWith("/outcome")) return [];
  const output = make("pre", { hidden: true });
  const inputs = parameters
    .filter((parameter) => parameter.in !== "header")
    .map((parameter) => ({ parameter, input: make("input", { required: parameter.in === "path", name: parameter.name }) }));
  const form = make(
    "form",
    {},
    ...inputs.map(({ parameter, input }) => make("label", {}, parameter.name, input)),
    make("button", { textContent: "Send" }),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let url = path;
    const query = new URLSearchParams();
    for (const { parameter, input } of inputs) {
      if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const response = await fetch(prefix + url + (query.size ? `?${query}` : ""), { headers });
    const text = await response.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // Not JSON: shown as it came.
    }
    output.hidden = false;
    output.textContent = `${response.status} ${response.statusText}\n\n${shown}`;
  });
  return [make("h3", { textContent: "Try it" }), form, output];
};

const routeCard = (api, path, method, operation) => {
  const id = operation.operationId;
  const parameters = operation.parameters || [];
  const role = operation["x-role"];
  const inside = make(
    "div",
    { className: "inside" },
    prose(operation.description),
    role ? prose(`Lowest role of an operator: \`${role}\`.`) : null,
  );
  if (parameters.length) {
    const rows = parameters.map((parameter) =>
      make(
        "tr",
        {},
        make("td", { className: parameter.required ? "need" : "", textContent: parameter.name }),
        make("td", { textContent: `${parameter.in}: ${typeName(api, parameter.schema)}` }),
        prose(parameter.description, "td"),
      ),
    );
    inside.append(make("h3", { textContent: "Parameters" }), make("table", {}, make("tbody", {}, ...rows)));
  }
  inside.append(...bodyOf(api, "Body", operation.requestBody && operation.requestBody.content).filter(Boolean));
  for (const [status, answer] of Object.entries(operation.responses || {})) {
    if (status === "422" || status === "default") continue;
    inside.append(...bodyOf(api, status, answer.content).filter(Boolean));
  }
  inside.append(...tryForm(method, path, parameters));
  return make(
    "details",
    { id },
    make(
      "summary",
      {},
      make("span", { className: `method ${method}`, textContent: method }),
      make("span", { className: "path", textContent: path }),
      make("span", { className: "what", textContent: operation.summary || "" }),
    ),
    inside,
  );
};

const openTarget = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
};

const draw = (api) => {
  const main = document.getElementById("main");
  const nav = document.getElementById("nav");
  document.title = `${api.info.title} API`;
  main.replaceChildren(
    make("h1", {}, `${api.info.title} `, make("small", { textContent: api.info.version })),
    prose(api.info.description),
    authorizeForm(),
  );
  for (const tag of api.tags) {
    nav.append(make("h2", { textContent: tag.name }));
    main.append(make("h2", { textContent: tag.name }), make("p", { className: "about", textContent: tag.description }));
    for (const [path, methods] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(methods)) {
        if (!(operation.tags || []).includes(tag.name)) continue;
        nav.append(make("a", { href: `#${operation.operationId}`, textContent: operation.summary }));
        main.append(routeCard(api, path, method.toUpperCase(), operation));
      }
    }
  }
  const problem = resolve(api, { $ref: "#/components/schemas/Problem" });
  main.append(
    make("h2", { textContent: "Errors" }),
    make("p", { className: "about", textContent: "Every error of every route is such a document." }),
    make("details", { open: true }, make("summary", {}, "Problem"),
      make("div", { className: "inside" }, fieldTable(api, problem), make("pre", { textContent: JSON.stringify(problem.examples[0], null, 2) }))),
  );
  addEventListener("hashchange", openTarget);
  openTarget();
};

fetch(`${prefix}/openapi.json`)
  .then((response) => response.json())
  .then(draw)
  .catch((error) => {
    document.getElementById("main").textContent = `The API's description could not be read: ${error}`;
  });
