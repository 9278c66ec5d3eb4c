export default function Device({ id }: { id: string }) {
  return <h1>{id}</h1>;
}
