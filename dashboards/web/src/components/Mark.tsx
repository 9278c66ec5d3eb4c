// The mark: enough of a ring have reported.
export function Mark() {
  const ring = [0, 1, 2, 3, 4, 5].map((i) => [16 + 9.5 * Math.sin((i * Math.PI) / 3), 16 - 9.5 * Math.cos((i * Math.PI) / 3)] as const);
  return (
    <svg className="mark" viewBox="0 0 32 32" aria-hidden="true">
      {ring.map(([x, y], i) => (
        <circle key={`${x}`.concat(`${y}`)} cx={x} cy={y} r="2.7" className={i === 5 ? "mark-absent" : "mark-there"} />
      ))}
      <circle cx="16" cy="16" r="4.4" className="mark-sum" />
    </svg>
  );
}
