// A table that scrolls within itself, with figures to the right.
import type { ReactNode } from "react";

export interface Column<T> {
  name: string;
  cell: (row: T) => ReactNode;
  /** Whether it holds figures. */
  figures?: boolean;
}

interface Props<T> {
  caption: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string | number;
  /** Pixels beyond which it scrolls. */
  height?: number;
}

export function Table<T>({ caption, columns, rows, rowKey, height }: Props<T>) {
  return (
    <div className="table" style={height ? { maxHeight: height } : undefined} tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption className="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" className={column.figures ? "figures" : undefined}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column) => (
                <td key={column.name} className={column.figures ? "figures" : undefined}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
