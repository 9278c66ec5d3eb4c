// A text editor with numbered lines. Lines with a mistake have a sign beside their number, and the mistakes are listed below.
import { useId, useRef } from "react";
import { Shape } from "./parts";

export interface Mistake {
  /** From 1; null: it is of no single line. */
  line: number | null;
  what: string;
}

interface Props {
  label: string;
  text: string;
  mistakes: readonly Mistake[];
  onChange: (text: string) => void;
}

const LEAST_LINES = 20;

export function TomlEditor({ label, text, mistakes, onChange }: Props) {
  const box = useRef<HTMLTextAreaElement>(null);
  const below = useId();
  const lines = text.split("\n");
  const wrong = new Set(mistakes.map((one) => one.line));
  const show = (line: number) => {
    const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    box.current?.focus();
    box.current?.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  };
  return (
    <div className="editor">
      <div className="editor-text">
        <ol className="editor-lines" aria-hidden="true">
          {Array.from({ length: Math.max(lines.length, LEAST_LINES) }, (_, i) => (
            <li key={i} className={wrong.has(i + 1) ? "tone-bad wrong" : undefined}>
              {wrong.has(i + 1) && <Shape tone="bad" />}
              {i < lines.length ? i + 1 : ""}
            </li>
          ))}
        </ol>
        <textarea
          ref={box}
          aria-label={label}
          aria-invalid={mistakes.length > 0}
          aria-describedby={below}
          rows={Math.max(lines.length, LEAST_LINES)}
          wrap="off"
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          value={text}
          onChange={(event) => onChange(event.target.value)}
        />
      </div>
      <ul id={below} className="mistakes" aria-live="polite">
        {mistakes.map((one) => (
          <li key={`${one.line} ${one.what}`} className="problem">
            <Shape tone="bad" />{" "}
            {one.line !== null && (
              <button type="button" className="quiet" onClick={() => one.line !== null && show(one.line)}>
                line {one.line}
              </button>
            )}{" "}
            <span>{one.what}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
