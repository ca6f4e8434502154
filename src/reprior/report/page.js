const t=document.getElementById('all'),b=t.tBodies[0],q=document.getElementById('q');
q.oninput=()=>{const s=q.value.toLowerCase();
for(const r of b.rows)r.hidden=!r.cells[0].textContent.toLowerCase().includes(s)};
[...t.tHead.rows[0].cells].forEach((h,i)=>{h.tabIndex=0;h.onkeydown=e=>e.key=='Enter'&&h.click();
h.onclick=()=>{const d=h.dataset.d=h.dataset.d?-h.dataset.d:i?-1:1;
const v=r=>r.cells[i].dataset.v??r.cells[i].textContent;
[...b.rows].sort((x,y)=>d*(i?v(x)-v(y):v(x).localeCompare(v(y)))).forEach(r=>b.append(r))}});
