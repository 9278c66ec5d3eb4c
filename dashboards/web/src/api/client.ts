// Requests to the API that serves this page, by the session's cookie. A refusal is thrown as the problem document says it.
import type { components, paths } from "./schema";

/** Where the API is: the page lies one folder below it, under any prefix. */
export const BASE = new URL("..", document.baseURI);

type Method = "get" | "post" | "put" | "delete";
/** Paths that have this method. */
type Paths<M extends Method> = { [P in keyof paths]: paths[P] extends Record<M, object> ? P : never }[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P] extends Record<M, infer O> ? O : never;
/** The JSON of the answer that is no refusal. */
export type Answer<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { responses: infer R }
    ? { [S in keyof R]: S extends 200 | 201 ? (R[S] extends { content: { "application/json": infer A } } ? A : never) : never }[keyof R]
    : never;
type Body<P extends keyof paths, M extends Method> =
  Operation<P, M> extends { requestBody?: { content: { "application/json": infer B } } } ? B : undefined;
export type Values = Record<string, string | number | undefined>;

/** What is wrong with one field of what was sent. */
export type FieldProblem = components["schemas"]["FieldProblem"];

/** A refusal, in the API's own words. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    detail: string,
    readonly fields: readonly FieldProblem[] = [],
  ) {
    super(detail);
  }

  /** Whether the session has ended, or there was none. */
  get needsLogin(): boolean {
    return this.status === 401;
  }
}

/** The address of a path of the API; `{name}` in it is filled from `values`, and the rest of them are its query. */
export function address(path: string, values: Values = {}): URL {
  const left = { ...values };
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = left[name];
    delete left[name];
    return encodeURIComponent(String(value));
  });
  const url = new URL(filled.replace(/^\//, ""), BASE);
  for (const [name, value] of Object.entries(left)) if (value !== undefined) url.searchParams.set(name, String(value));
  return url;
}

export function get<P extends Paths<"get">>(path: P, values?: Values, signal?: AbortSignal): Promise<Answer<P, "get">> {
  return ask("GET", path, values, undefined, signal) as Promise<Answer<P, "get">>;
}

/** A page of a list, and after what the rest of it comes; empty: there is no more. */
export interface Page<T> {
  rows: T[];
  next: string;
}

export async function page<P extends Paths<"get">>(path: P, values?: Values, signal?: AbortSignal): Promise<Page<Answer<P, "get"> extends (infer T)[] ? T : never>> {
  const response = await answered("GET", path, values, undefined, signal);
  return { rows: await response.json(), next: response.headers.get("Quorate-Next") ?? "" };
}

export function post<P extends Paths<"post">>(path: P, body?: Body<P, "post">, values?: Values, signal?: AbortSignal): Promise<Answer<P, "post">> {
  return ask("POST", path, values, body, signal) as Promise<Answer<P, "post">>;
}

/** Sends bytes that the API takes as they are. */
export function put<P extends Paths<"put">>(path: P, bytes: ArrayBuffer, values?: Values): Promise<Answer<P, "put">> {
  return ask("PUT", path, values, bytes) as Promise<Answer<P, "put">>;
}

export function remove<P extends Paths<"delete">>(path: P, values?: Values): Promise<Answer<P, "delete">> {
  return ask("DELETE", path, values) as Promise<Answer<P, "delete">>;
}

async function ask(method: string, path: string, values?: Values, body?: unknown, signal?: AbortSignal): Promise<unknown> {
  const response = await answered(method, path, values, body, signal);
  return response.status === 204 ? undefined : response.json();
}

async function answered(method: string, path: string, values?: Values, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (method !== "GET") headers["Quorate-Request"] = "1";
  const bytes = body instanceof ArrayBuffer ? body : null;
  if (bytes) headers["Content-Type"] = "application/octet-stream";
  else if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(address(path, values), {
      method,
      headers,
      cache: "no-store",
      credentials: "same-origin",
      body: bytes ?? (body === undefined ? null : JSON.stringify(body)),
      signal: signal ?? null,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal(0, "unreachable", "The coordinator does not answer. Is it running, and is the network there?");
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

async function refusalOf(response: Response): Promise<Refusal> {
  const found: unknown = await response.json().catch(() => null);
  const problem = typeof found === "object" && found !== null ? (found as Record<string, unknown>) : {};
  const detail = typeof problem.detail === "string" ? problem.detail : `The coordinator answered ${response.status}.`;
  const kind = typeof problem.type === "string" ? problem.type.replace(/^.*\//, "") : "";
  return new Refusal(response.status, kind, detail, Array.isArray(problem.fields) ? (problem.fields as FieldProblem[]) : []);
}
