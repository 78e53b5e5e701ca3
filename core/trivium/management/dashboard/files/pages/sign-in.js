// Signing in: a name and a password or API key, or a token alone.

import { signIn } from "../api.js";
import { field } from "../dialogs.js";
import { h } from "../dom.js";

const REASONS = {
  401: "That is no user, or another password.",
  403: "This user may not use the dashboard: it needs one of the tags management, policymaker, monitoring and administrator.",
};

export default function signInPage(done, wasIn) {
  const user = h("input", { name: "user", autocomplete: "username", autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const token = h("input", { name: "token", type: "password", autocomplete: "off" });
  const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  let isBusy = false;

  async function send(event) {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    trouble.hidden = true;
    try {
      const caller = await signIn({ user: user.value, password: password.value, token: token.value.trim() });
      password.value = "";
      token.value = "";
      await done(caller);
    } catch (error) {
      if (error.name !== "Problem") throw error;
      trouble.textContent = REASONS[error.status] || error.message;
      trouble.hidden = false;
      password.value = "";
      (token.value ? token : password).focus();
    } finally {
      isBusy = false;
    }
  }

  return h("form", { class: "sign-in", onsubmit: send }, h("h1", {}, "Trivium"),
    wasIn && h("p", { role: "status" }, "You are signed out."),
    field("User", user), field("Password or API key", password),
    h("details", {}, h("summary", {}, "Sign in with a token"), field("Token (JWT) or API key", token, "It stands for user and password.")),
    trouble, h("button", { type: "submit", class: "main" }, "Sign in"));
}
