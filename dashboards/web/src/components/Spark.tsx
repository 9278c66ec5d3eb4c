// A small curve without axes, beside the number that it ends in.
import { sparkPoints } from "../spark";

const WIDTH = 96;
const HEIGHT = 26;

export function Spark({ values }: { values: readonly number[] }) {
  const points = sparkPoints(values, WIDTH, HEIGHT);
  const [x, y] = points.at(-1) ?? [0, 0];
  return (
    <svg className="spark" viewBox={`-3 -3 ${WIDTH + 6} ${HEIGHT + 6}`} aria-hidden="true">
      <polyline points={points.map((point) => point.join()).join(" ")} />
      <circle cx={x} cy={y} r="2.6" />
    </svg>
  );
}
