// Sends the token; the server answers with a session or with the reason why not.

const form = document.getElementById("login");
const refusal = document.getElementById("refusal");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  refusal.textContent = "";
  try {
    const answer = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token: form.token.value.trim() }),
    });
    if (answer.ok) location.assign("/");
    else refusal.textContent = (await answer.text()).trim();
  } catch {
    refusal.textContent = "Nobody answers; is the page still being served?";
  }
  form.token.select();
});
