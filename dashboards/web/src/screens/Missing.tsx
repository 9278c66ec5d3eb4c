import { EmptyState } from "../components/parts";

export function Missing({ path }: { path: string }) {
  return (
    <>
      <h1>There is no such screen</h1>
      <EmptyState title={`Nothing is at ${path}.`}>
        <a href="#/runs">Show the runs</a>
      </EmptyState>
    </>
  );
}
