// A lane per device against time. Only the lanes in view are in the document, so that 1,000 of them scroll as ten do.
import { type PointerEvent, useState } from "react";
import type { Lane } from "../api/types";
import { duration } from "../format";
import { named, place, type Segment, type Span, segments, STEPS, TONES, ticks, within } from "../lanes";
import { Shape } from "./parts";

const ROW = 24;
const MOST_HEIGHT = 480;
const AXIS = 30;
const BEYOND = 6;
const LEAST_DRAG = 0.01;

interface Props {
  label: string;
  lanes: readonly Lane[];
  all: Span;
  span: Span;
  closedAt: number | null;
  now: number;
  picked: string | null;
  onPick: (device: string) => void;
  onSpan: (span: Span) => void;
}

export function Lanes(props: Props) {
  const { lanes } = props;
  const [top, setTop] = useState(0);
  const height = Math.min(MOST_HEIGHT, lanes.length * ROW + AXIS);
  const first = Math.max(0, Math.floor(top / ROW) - BEYOND);
  const shown = lanes.slice(first, first + Math.ceil(height / ROW) + 2 * BEYOND);
  return (
    <div className="lanes" style={{ height }} tabIndex={0} role="region" aria-label={props.label} onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
      <Axis {...props} />
      <ol style={{ height: lanes.length * ROW }}>
        {shown.map((lane, i) => (
          <li key={lane.device} aria-setsize={lanes.length} aria-posinset={first + i + 1} style={{ top: (first + i) * ROW }}>
            <Row {...props} lane={lane} />
          </li>
        ))}
      </ol>
    </div>
  );
}

function Row({ lane, span, closedAt, now, picked, onPick }: Props & { lane: Lane }) {
  return (
    <button type="button" className={`lane tone-${TONES[lane.end]}`} aria-pressed={picked === lane.device} onClick={() => onPick(lane.device)} title={lane.reason || undefined}>
      <span className="cut lane-name">{named(lane)}</span>
      <span className="lane-track">
        {segments(lane, closedAt, now).map((one) => (
          <Step key={`${one.step} ${one.from}`} one={one} span={span} />
        ))}
        {closedAt !== null && <At at={closedAt} span={span} kind="closing" />}
        {lane.ended_at != null && lane.end !== "reported" && <At at={lane.ended_at} span={span} kind="over" />}
      </span>
      <span className="lane-end">
        <Shape tone={TONES[lane.end]} /> <span>{lane.end}</span>
      </span>
    </button>
  );
}

function Step({ one, span }: { one: Segment; span: Span }) {
  const from = Math.max(0, place(one.from, span));
  const to = Math.min(100, place(one.to, span));
  if (to < 0 || from > 100 || to <= from) return null;
  return <span className={`step step-${one.step}`} style={{ left: `${from}%`, width: `${to - from}%` }} title={`${STEPS[one.step]} ${duration(one.to - one.from)}`} />;
}

function At({ at, span, kind }: { at: number; span: Span; kind: "closing" | "over" }) {
  const left = place(at, span);
  return left < 0 || left > 100 ? null : <span className={kind} style={{ left: `${left}%` }} />;
}

/** The times, from the selection on. A drag along it shows the part that was dragged over. */
function Axis({ all, span, closedAt, onSpan }: Props) {
  const [drag, setDrag] = useState<Span | null>(null);
  const share = (event: PointerEvent<HTMLElement>) => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  const end = () => {
    if (!drag) return;
    setDrag(null);
    const [from, to] = drag.from < drag.to ? [drag.from, drag.to] : [drag.to, drag.from];
    const length = span.to - span.from;
    if (to - from > LEAST_DRAG) onSpan(within({ from: span.from + from * length, to: span.from + to * length }, all));
  };
  const narrow = matchMedia("(max-width: 520px)").matches;
  return (
    <div className="lane-axis" aria-hidden="true">
      <span />
      <span
        className="lane-times"
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          setDrag({ from: share(event), to: share(event) });
        }}
        onPointerMove={(event) => drag && setDrag({ ...drag, to: share(event) })}
        onPointerUp={end}
        onPointerCancel={() => setDrag(null)}
      >
        {ticks(span, all.from, narrow ? 4 : 8).map((s) => (
          <span key={s} className="tick" style={{ left: `${place(all.from + s, span)}%` }}>
            {duration(s)}
          </span>
        ))}
        {closedAt !== null && <At at={closedAt} span={span} kind="closing" />}
        {drag && <span className="drag" style={{ left: `${Math.min(drag.from, drag.to) * 100}%`, width: `${Math.abs(drag.to - drag.from) * 100}%` }} />}
      </span>
      <span />
    </div>
  );
}
