/* Browsers start no worker for a page that was opened from a folder. There the search runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      this.ready = new Promise((resolve) => (inside.loaded = resolve))
      inside.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.document.open()
      inside.document.write(
        "<script>postMessage = answer</script>" +
          `<script src="${url}" onload="loaded()"></script>`
      )
      inside.document.close()
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
