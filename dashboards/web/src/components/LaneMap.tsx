// All lanes of a round in one small picture: a line for each device against time, those that were over first above.
import { useEffect, useRef } from "react";
import type { Lane } from "../api/types";
import { duration } from "../format";
import { place, type Segment, type Span, type Step, segments, TONES, ticks } from "../lanes";
import { colour, useTheme } from "../theme";

const AXIS = 20;
/** Of a lane's height, so that steps differ in more than their colour. */
const THICK: Readonly<Record<Step, number>> = { wait: 0.16, fetch: 0.5, train: 0.84, upload: 0.84 };
const PAINT: Readonly<Record<Step, string>> = { wait: "muted", fetch: "series-6", train: "series-1", upload: "series-2" };
const MOST_LANE = 14;
/** Percent from the left beyond which a time has no room to be written. */
const ROOM = 93;

interface Props {
  label: string;
  lanes: readonly Lane[];
  span: Span;
  /** Unix seconds at which the times begin to be counted. */
  begin: number;
  closedAt: number;
  height: number;
}

export function LaneMap(props: Props) {
  const { label, span, begin, closedAt, height, lanes } = props;
  const [theme] = useTheme();
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = () => paint(element, props);
    const resizing = new ResizeObserver(draw);
    resizing.observe(element);
    return () => resizing.disconnect();
    // biome-ignore lint: `props` is new each time, these say when the picture changes
  }, [theme, lanes, span.from, span.to, closedAt]);
  const marks = ticks(span, begin, 6).filter((s) => place(begin + s, span) < ROOM);
  return (
    <div className="lane-map">
      <div className="lane-times" aria-hidden="true">
        {marks.map((s) => (
          <span key={s} className="tick" style={{ left: `${place(begin + s, span)}%` }}>
            {duration(s)}
          </span>
        ))}
      </div>
      <canvas ref={canvas} role="img" aria-label={label} style={{ height: height - AXIS }} />
    </div>
  );
}

function paint(canvas: HTMLCanvasElement, { lanes, span, closedAt }: Props): void {
  const sharp = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = Math.round(width * sharp);
  canvas.height = Math.round(height * sharp);
  const to = canvas.getContext("2d");
  if (!to || !lanes.length) return;
  to.scale(sharp, sharp);
  const each = Math.min(MOST_LANE, height / lanes.length);
  const x = (at: number) => (Math.min(100, Math.max(0, place(at, span))) / 100) * width;
  const colours = new Map(Object.entries(PAINT).map(([step, token]) => [step, colour(token)]));
  const bar = (one: Segment, row: number) => {
    const thick = each * THICK[one.step];
    to.globalAlpha = one.step === "wait" ? 0.55 : 1;
    to.fillStyle = colours.get(one.step) ?? "";
    to.fillRect(x(one.from), row * each + (each - thick) / 2, Math.max(0.5, x(one.to) - x(one.from)), thick);
  };
  lanes.forEach((lane, row) => {
    for (const one of segments(lane, closedAt, closedAt)) bar(one, row);
    to.globalAlpha = 1;
    if (lane.end === "reported" || lane.ended_at == null) return;
    to.fillStyle = colour(TONES[lane.end]);
    to.fillRect(Math.min(width - 4, x(lane.ended_at) - 2), row * each, 4, Math.max(1, each));
  });
  to.fillStyle = colour("text");
  to.fillRect(x(closedAt) - 1, 0, 2, height);
}
