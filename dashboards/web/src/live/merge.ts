// JSON Merge Patch (RFC 7396): what a patch names is replaced, null removes, objects are merged within.
type Json = Record<string, unknown>;

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A new value; neither argument is changed. Parts that the patch does not name are shared with the target. */
export function merged(target: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const result: Json = isObject(target) ? { ...target } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (name === "__proto__") continue;
    if (value === null) delete result[name];
    else result[name] = merged(result[name], value);
  }
  return result;
}
