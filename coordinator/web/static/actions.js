// Pause, resume, stop and log out, each after a question where it matters.

import { element } from "./format.js";
import { onChange, post, state } from "./state.js";

const $ = (id) => document.getElementById(id);
const TEXTS = {
  pause: ["Pause", ""],
  resume: ["Resume", ""],
  stop: ["Stop…", "End the run after the round that is open? The model so far is delivered."],
};

export function report({ ok, sentence }) {
  const banner = $("answer");
  banner.textContent = sentence;
  banner.className = `banner ${ok ? "quiet" : "bad"}`;
  banner.hidden = false;
  clearTimeout(report.timer);
  report.timer = setTimeout(() => { banner.hidden = true; }, 15_000);
}

export function confirmed(question, yes) {
  $("confirm-text").textContent = question;
  $("confirm-yes").textContent = yes;
  const dialog = $("confirm");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function makeButton(action) {
  const [text, question] = TEXTS[action];
  const button = element("button", { type: "button", text, id: `action-${action}` });
  button.addEventListener("click", async () => {
    if (question && !(await confirmed(question, text.replace("…", "")))) return;
    button.disabled = true;
    report(await post(`/api/actions/${action}`));
    button.disabled = false;
  });
  return button;
}

async function logOut() {
  await post("/logout");
  location.assign("/login");
}

function show() {
  const wanted = [...(state.run.actions ?? []), ...(state.me.login ? ["logout"] : [])];
  const parent = $("actions");
  if (parent.dataset.key === wanted.join()) return;
  parent.dataset.key = wanted.join();
  parent.replaceChildren(
    ...wanted.map((action) => {
      if (action !== "logout") return makeButton(action);
      const button = element("button", { type: "button", text: "Log out", id: "logout" });
      button.addEventListener("click", logOut);
      return button;
    }),
  );
}

onChange((change) => {
  if (change.run || change.me) show();
});
