// Search from the disk. Browsers start no worker for a page opened as a file, so the theme's search
// runs in a frame there. Material's plugin "offline" would load a script for this from another host,
// unless one of this name is given.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((resolve, reject) => {
        frame.onload = () => {
          frame.onload = null;
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = new URL(url, location);
          script.onload = () => resolve(inside);
          script.onerror = () => reject(new Error(`${script.src} cannot be loaded`));
          frame.contentDocument.head.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
