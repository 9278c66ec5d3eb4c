// The small pieces of which screens are made.
import { Fragment, type ReactNode, useId, useState } from "react";
import { sentence } from "../format";
import type { Tone } from "../progress";
import { devicePath } from "../route";

/** Each tone has a shape as well as a colour. */
const SHAPES: Readonly<Record<Tone, ReactNode>> = {
  good: <path d="M2.5 6.5 5 9l4.5-6" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" strokeLinejoin="round" />,
  busy: <circle cx="6" cy="6" r="3.6" fill="currentColor" className="pulse" />,
  warn: <path d="M6 1.2 11.2 10.6H.8z" fill="currentColor" />,
  bad: <path d="M2.5 2.5l7 7m0-7l-7 7" fill="none" stroke="currentColor" strokeWidth="2.2" strokeLinecap="round" />,
  idle: <path d="M3.2 2.4v7.2m5.6-7.2v7.2" fill="none" stroke="currentColor" strokeWidth="2.4" strokeLinecap="round" />,
};

export function Shape({ tone }: { tone: Tone }) {
  return (
    <svg className="shape" viewBox="0 0 12 12" aria-hidden="true">
      {SHAPES[tone]}
    </svg>
  );
}

export function Badge({ tone, children }: { tone: Tone; children: ReactNode }) {
  return (
    <span className={`badge tone-${tone}`}>
      <Shape tone={tone} />
      {children}
    </span>
  );
}

/** `note`: what it shows, beside the title. `wide`: over the whole width. */
export function Panel(props: { title: string; note?: ReactNode; wide?: boolean; actions?: ReactNode; children: ReactNode }) {
  const id = useId();
  return (
    <section className={props.wide ? "panel wide" : "panel"} aria-labelledby={id}>
      <header className="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.note !== undefined && <p className="note">{props.note}</p>}
        {props.actions}
      </header>
      {props.children}
    </section>
  );
}

/** Shows the table behind a chart, and the chart again. */
export function Swap({ asTable, onSwap }: { asTable: boolean; onSwap: (asTable: boolean) => void }) {
  return (
    <button type="button" className="quiet swap" aria-pressed={asTable} onClick={() => onSwap(!asTable)}>
      {asTable ? "Show the chart" : "Show the table"}
    </button>
  );
}

/** A command with a button that copies it. */
export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => {
    navigator.clipboard?.writeText(text).then(
      () => setCopied(true),
      () => undefined,
    );
  };
  return (
    <span className="command">
      <code>{text}</code>
      <button type="button" className="quiet" onClick={copy} aria-label={`Copy the command ${text}`}>
        {copied ? "Copied" : "Copy"}
      </button>
    </span>
  );
}

/** What a screen says before there is anything, and what to do next. */
export function EmptyState({ title, children, command }: { title: string; children?: ReactNode; command?: string | null }) {
  return (
    <div className="empty">
      <p className="empty-title">{title}</p>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

/** Devices whose identity two processes use. */
export function SharedIdentities({ devices }: { devices: readonly string[] }) {
  return devices.length ? (
    <div className="lead-box tone-warn" data-fact="shared-identities">
      <p className="lead">
        Two processes use the identity of{" "}
        {devices.map((device, i) => (
          <Fragment key={device}>
            {i > 0 && ", "}
            <a href={devicePath(device)}>
              <code>{device}</code>
            </a>
          </Fragment>
        ))}
        : a folder was copied, so they take turns as one device. Stop one of them, and let it enrol with a folder of its own.
      </p>
    </div>
  ) : null;
}

export function Fact({ label, value, note, children }: { label: string; value: ReactNode; note?: ReactNode; children?: ReactNode }) {
  return (
    <div className="fact">
      <dt>{label}</dt>
      <dd>
        <span className="value">{value}</span>
        {note !== undefined && note !== "" && <span className="note">{note}</span>}
        {children}
      </dd>
    </div>
  );
}

/** A figure that may have many digits, or a name; long ones are written smaller, so that they stay on one line. */
export function Figure({ name, text }: { name: string; text: string }) {
  return (
    <span data-fact={name} className={text.length > 11 ? "cut long" : "cut"} title={text.length > 20 ? text : undefined}>
      {text}
    </span>
  );
}

/** `part` of `whole`, as a bar. */
export function Progress({ part, whole, label, tone = "busy" }: { part: number; whole: number; label: string; tone?: Tone }) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return (
    <div className={`progress tone-${tone}`} role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={whole} aria-valuenow={Math.min(part, whole)}>
      <span style={{ transform: `scaleX(${share})` }} />
    </div>
  );
}

export function Problem({ text }: { text: string | null }) {
  return text ? (
    <p className="problem" role="alert">
      <Shape tone="bad" /> {sentence(text)}
    </p>
  ) : null;
}
