// Gives the reader a file that the page has made. The policy of the page has no `data:`; a blob's address is of its own origin.
export function download(name: string, body: Blob): void {
  const url = URL.createObjectURL(body);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
